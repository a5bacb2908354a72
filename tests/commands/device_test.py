"""--device: names that no device can have, and devices that this machine or this build lacks. Each is one line."""
import ctypes
import os
import subprocess
import tempfile
import unittest

CAMBIUM = os.environ["CAMBIUM"]
FAKES = os.environ.get("CAMBIUM_FAKE_DRIVERS")  # of a build with CUDA: a folder of folders with a libcuda.so.1


def has_driver():
    try:
        return bool(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return False


class Devices(unittest.TestCase):
    def refuse(self, device, words=("bench", "ops"), **environment):
        """Status and line of a command on a device that it refuses."""
        run = subprocess.run([CAMBIUM, *words, "--device", device], capture_output=True, text=True, timeout=60,
                             stdin=subprocess.DEVNULL, env={**os.environ, **environment})
        self.assertEqual((run.stdout, run.stderr.count("\n")), ("", 1), run.stderr)
        self.assertTrue(run.stderr.startswith("cambium: error: "), run.stderr)
        return run.returncode, run.stderr[len("cambium: error: "):-1]

    def test_names_that_no_device_has_are_usage_errors(self):
        for name in ("cuda:x", "cuda:-1", "cuda:", "cuda:1000", "cuda:99999999999999999999", "cuda:1x", "cuda:sm_x"):
            for words in (("bench", "ops"), ("generate",), ("pretrain",), ("merge",)):
                with self.subTest(name=name, words=words):
                    self.assertEqual(self.refuse(name, words),
                                     (2, f"option --device: '{name}' is not a device: expected cuda, or cuda: and a number "
                                         "from 0 to 999"))

    def test_a_device_that_nobody_knows_is_refused_with_those_that_there_are(self):
        status, line = self.refuse("abacus")
        self.assertEqual(status, 1)
        self.assertRegex(line, r"device 'abacus' is not built in \(built: cpu(, cuda)?\)$")

    def test_only_the_cpu_has_levels(self):
        self.assertEqual(self.refuse("late:v3"), (1, "late:v3: this machine has no v3"))

    def test_the_device_is_found_before_a_model_is_read(self):
        """No model and no data is there: the message is about the device, and nothing is written."""
        device = "cuda:sm_90"  # no machine has it
        with tempfile.TemporaryDirectory() as directory:
            output = os.path.join(directory, "output")
            for words in (
                ["generate", "--model", "none", "--prompt", "a"],
                ["score", "--model", "none", "--input", "none"],
                ["serve", "--model", "none"],
                ["merge", "--model", "none", "--adapter", "none", "--output", output],
                ["finetune", "--model", "none", "--data", "none", "--output", output],
                ["pretrain", "--init-from", "none", "--data.data_path", "none", "--checkpoint.save", output],
            ):
                with self.subTest(words[0]):
                    status, line = self.refuse(device, words)
                    self.assertEqual(status, 1)
                    self.assertIn("cuda", line)
                    self.assertNotIn("none", line)
            self.assertEqual(os.listdir(directory), [])

    @unittest.skipIf(FAKES, "this build has CUDA")
    def test_a_build_without_cuda_says_how_to_get_it(self):
        for name in ("cuda", "cuda:1"):
            self.assertEqual(self.refuse(name), (1, f"--device {name}: this program is built without CUDA: configure the build "
                                                    "with -DCAMBIUM_CUDA=ON"))

    @unittest.skipIf(not FAKES or has_driver(), "this build has no CUDA, or this machine has a driver")
    def test_a_machine_without_a_driver_says_so(self):
        for name in ("cuda", "cuda:1"):
            self.assertEqual(self.refuse(name), (1, "--device cuda: no NVIDIA driver: libcuda.so.1 was not found"))

    @unittest.skipUnless(FAKES, "this build has no CUDA")
    def test_the_program_reports_the_faults_of_a_driver(self):
        for folder, fault, name, text in (
            ("lib", "", "cuda:3", "cuda:3: this machine has 2 GPUs (cuda:0 to cuda:1)"),
            ("lib", "stub", "cuda", "--device cuda: no NVIDIA driver: libcuda.so.1 is the CUDA toolkit's stub, which only serves "
                                    "to link programs"),
            ("lacking", "", "cuda", "--device cuda: libcuda.so.1 has no function cuLaunchKernel"),
            ("lacking_product", "", "cuda", "--device cuda: libcublasLt.so.13 has no function cublasLtMatmul"),
            ("alone", "", "cuda", "--device cuda: no cuBLASLt: " + os.path.join(FAKES, "alone/libcublasLt.so.13") +
                                  ": file too short"),
            ("lib", "", "cuda:sm_90", "cuda:sm_90 is a kind of device to plan for, and no device of this machine"),
        ):
            with self.subTest(folder=folder, fault=fault, name=name):
                self.assertEqual(self.refuse(name, FAKE_DRIVER=fault, LD_LIBRARY_PATH=os.path.join(FAKES, folder)), (1, text))


if __name__ == "__main__":
    unittest.main()
