"""The manifests of deploy/kubernetes against the published schemas, offline: Kubernetes' own as kubernetes-validate ships
them, strictly, and the Prometheus operator's as cloudcoil's models of its CRDs. The fields of an MPIJob are those of the
MPI operator's CRD, manifests/base/kubeflow.org_mpijobs.yaml of github.com/kubeflow/mpi-operator at 013fa15b22a6, v2beta1."""
import copy
import os
import pathlib
import unittest

try:
    import kubernetes_validate
    import yaml
    from cloudcoil.models.prometheus_operator.v1 import ServiceMonitor
except ImportError as error:
    raise unittest.SkipTest(f"the schemas are not here, and PyPI does not answer ({error})")

MANIFESTS = pathlib.Path(os.environ["CAMBIUM_SOURCE"]) / "deploy/kubernetes"
VERSIONS = ("1.29", kubernetes_validate.latest_version())
POLICY = {"activeDeadlineSeconds": int, "backoffLimit": int, "cleanPodPolicy": str, "schedulingPolicy": dict, "suspend": bool,
          "ttlSecondsAfterFinished": int}
JOB = {"mpiImplementation": str, "mpiReplicaSpecs": dict, "runPolicy": dict, "slotsPerWorker": int, "sshAuthMountPath": str,
       "waitForWorkers": bool}
REPLICA = {"replicas": int, "restartPolicy": str, "template": dict}


def documents(name):
    return [document for document in yaml.safe_load_all((MANIFESTS / name).read_text()) if document]


def check(document):
    """Raises where the schema of its kind has anything against it."""
    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)


def check_fields(found, known):
    for name, value in found.items():
        assert isinstance(value, known[name]), name


def check_mpi_job(document):
    assert (document["apiVersion"], document["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
    spec = document["spec"]
    check_fields(spec, JOB)
    check_fields(spec.get("runPolicy", {}), POLICY)
    assert spec["runPolicy"]["cleanPodPolicy"] in ("Running", "All", "None")
    assert spec["mpiImplementation"] in ("OpenMPI", "Intel")
    assert set(spec["mpiReplicaSpecs"]) == {"Launcher", "Worker"}
    for replica in spec["mpiReplicaSpecs"].values():
        check_fields(replica, REPLICA)
        assert replica["restartPolicy"] in ("Never", "OnFailure")
        check({"apiVersion": "v1", "kind": "PodTemplate", "metadata": document["metadata"], "template": replica["template"]})


def check_monitor(document):
    """The models pass over what they do not know: it is lost when they say what they have read."""
    read = ServiceMonitor.model_validate(document)
    assert read.model_dump(mode="json", by_alias=True, exclude_unset=True) == document


class Manifests(unittest.TestCase):
    def test_every_manifest_is_checked(self):
        self.assertEqual({path.name for path in MANIFESTS.iterdir()}, {"serve.yaml", "servicemonitor.yaml", "pretrain.yaml", "finetune.yaml"})

    def test_serve(self):
        kinds = [document["kind"] for document in documents("serve.yaml")]
        self.assertEqual(kinds, ["Deployment", "Service"])
        for document in documents("serve.yaml"):
            check(document)
        deployment, service = documents("serve.yaml")
        container, = deployment["spec"]["template"]["spec"]["containers"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            self.assertIn(container[probe]["httpGet"]["port"], [port["name"] for port in container["ports"]])
        self.assertEqual(service["spec"]["selector"], deployment["spec"]["template"]["metadata"]["labels"])
        self.assertEqual(deployment["spec"]["selector"]["matchLabels"], service["spec"]["selector"])
        names = {volume["name"] for volume in deployment["spec"]["template"]["spec"]["volumes"]}
        self.assertEqual({mount["name"] for mount in container["volumeMounts"]}, names)

    def test_finetune(self):
        job, = documents("finetune.yaml")
        self.assertEqual(job["kind"], "Job")
        check(job)

    def test_service_monitor(self):
        monitor, = documents("servicemonitor.yaml")
        check_monitor(monitor)
        service = documents("serve.yaml")[1]
        self.assertEqual(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"])
        self.assertIn(monitor["spec"]["endpoints"][0]["port"], [port["name"] for port in service["spec"]["ports"]])

    def test_mpi_job(self):
        job, = documents("pretrain.yaml")
        check_mpi_job(job)
        specs = job["spec"]["mpiReplicaSpecs"]
        words = specs["Launcher"]["template"]["spec"]["containers"][0]["args"]
        self.assertEqual(int(words[words.index("-n") + 1]), specs["Worker"]["replicas"] * job["spec"]["slotsPerWorker"])

    def test_a_wrong_field_is_found(self):
        """The checks find what they are for."""
        deployment = documents("serve.yaml")[0]
        for change in (lambda d: d["spec"].update(replica=2), lambda d: d["spec"]["template"]["spec"]["containers"][0].update(argss=[]),
                       lambda d: d["spec"].update(replicas="two"), lambda d: d["spec"].pop("selector")):
            wrong = copy.deepcopy(deployment)
            change(wrong)
            with self.assertRaises(kubernetes_validate.ValidationError):
                check(wrong)
        monitor, = documents("servicemonitor.yaml")
        monitor["spec"]["endpoints"][0]["prt"] = "http"
        with self.assertRaises(AssertionError):
            check_monitor(monitor)
        job, = documents("pretrain.yaml")
        job["spec"]["slots"] = 4
        with self.assertRaises(KeyError):
            check_mpi_job(job)
        job, = documents("pretrain.yaml")
        job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["img"] = "x"
        with self.assertRaises(kubernetes_validate.ValidationError):
            check_mpi_job(job)


if __name__ == "__main__":
    unittest.main()
