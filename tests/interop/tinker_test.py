"""Tinker's own client against `cambium serve --tuning-root`: training, losses, samples, saved weights and refusals."""
import math
import pathlib
import tempfile
import unittest

import numpy
import peft
import tinker
import torch
from interop_support import SEED, Case, logprobs, random_gpt2, score
from model_support import write_byte_tokenizer
from serve_support import Server
from tinker import types

MODEL, RANK, RATE = "org/tiny", 4, 1e-2
ROWS = [[5, 9, 60, 33, 7, 101, 2], [44, 8, 8, 190, 3]]


def datum(tokens, **inputs):
    """Every token predicts the next one."""
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs={"target_tokens": tokens[1:], **inputs})


def weighed(tokens, seed=0):
    weights = numpy.random.default_rng(seed).uniform(0, 1, len(tokens) - 1).astype(numpy.float32)
    return datum(tokens, weights=types.TensorData.from_numpy(weights))


def drawn(tokens, seed):
    random = numpy.random.default_rng(seed)
    arrays = {"logprobs": random.uniform(-8, -4, len(tokens) - 1), "advantages": random.normal(size=len(tokens) - 1)}
    return datum(tokens, **{name: types.TensorData.from_numpy(a.astype(numpy.float32)) for name, a in arrays.items()})


class Tinker(Case):
    """A server of its own for all tests, and a session for each."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="cambium-interop-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.base = pathlib.Path(cls.folder.name) / "base"
        cls.model = random_gpt2(1, vocab_size=260, n_positions=64)
        cls.model.save_pretrained(cls.base)
        write_byte_tokenizer(cls.base)
        cls.root = pathlib.Path(cls.folder.name) / "root"
        cls.keys = pathlib.Path(cls.folder.name) / "keys"
        cls.keys.write_text("ours tml-ours tune\nothers tml-others tune\n")
        cls.server = Server("--tuning-root", cls.root, "--tuning-memory", "64M", "--model-name", MODEL, "--api-key-file", cls.keys,
                            "--precision", "fp32", model=cls.base)
        cls.addClassCleanup(cls.server.__exit__, None, None, None)

    def setUp(self):
        super().setUp()
        self.service = self.session("tml-ours")

    def session(self, key):
        service = tinker.ServiceClient(base_url=f"http://{self.server.addresses['data']}", api_key=key)
        self.addCleanup(service.close, "success")
        return service

    def train(self, seed=1, **more):
        return self.service.create_lora_training_client(MODEL, rank=RANK, seed=seed, **more).result()

    def files(self, path):
        """The directory of saved weights."""
        run, kind, name = path.removeprefix("tinker://").split("/")
        return self.root / "runs" / run / kind / name

    def assert_close(self, ours, theirs, bound):
        ours, theirs = numpy.asarray(ours, float), numpy.asarray(theirs, float)
        self.assertEqual(ours.shape, theirs.shape)
        self.assertLessEqual(abs(ours - theirs).max(), bound * max(1, abs(theirs).max()))

    # ---- training

    def test_steps_follow_torch(self):
        """Three steps of torch's AdamW on PEFT's adapter, whose first values are those saved before the first step."""
        client = self.train()
        before = client.save_state("before").result().path
        theirs = peft.PeftModel.from_pretrained(random_gpt2(1, vocab_size=260, n_positions=64), self.files(before), is_trainable=True)
        self.assertEqual(theirs.peft_config["default"].lora_alpha, 32)
        adam = torch.optim.AdamW((p for p in theirs.parameters() if p.requires_grad), lr=RATE, betas=(0.9, 0.95), eps=1e-12,
                                 weight_decay=0.01)
        data = [weighed(row, i) for i, row in enumerate(ROWS)]
        for step in range(3):
            passes = [client.forward_backward([one], "cross_entropy") for one in data]  # gradients add up
            update = client.optim_step(types.AdamParams(learning_rate=RATE, weight_decay=0.01))
            outputs = [one.result() for one in passes]
            norm = update.result().metrics["grad_norm:mean"]
            adam.zero_grad()
            for one, output in zip(data, outputs):
                tokens = torch.tensor([one.model_input.to_ints()])
                every = torch.log_softmax(theirs(input_ids=tokens).logits[0], -1)
                targets = torch.tensor(one.loss_fn_inputs["target_tokens"].data)
                found = every.gather(1, targets[:, None])[:, 0]
                loss = -(found * torch.tensor(one.loss_fn_inputs["weights"].data)).sum()
                loss.backward()
                self.assert_close(output.loss_fn_outputs[0]["logprobs"].data, found.detach(), 1e-5)
                self.assert_close(output.metrics["loss:sum"], loss.item(), 1e-5)
            total = torch.nn.utils.clip_grad_norm_(theirs.parameters(), math.inf)
            self.assert_close(norm, total.item(), 1e-4)
            adam.step()
        after = client.save_state("after").result().path
        ours = peft.PeftModel.from_pretrained(random_gpt2(1, vocab_size=260, n_positions=64), self.files(after))
        for name, value in peft.get_peft_model_state_dict(ours).items():
            self.assert_close(value, peft.get_peft_model_state_dict(theirs)[name].detach(), 2e-4)

    def test_losses(self):
        """Sums over all data of the formulas, with the log-probabilities that come with them."""
        client = self.train()
        data = [drawn(row, i) for i, row in enumerate(ROWS)]
        of = {
            ("importance_sampling", ()): lambda p, q, a: -(torch.exp(p - q) * a),
            ("ppo", ()): lambda p, q, a: -torch.min(torch.exp(p - q) * a, torch.exp(p - q).clamp(0.8, 1.2) * a),
            ("ppo", (("clip_low_threshold", 0.5), ("clip_high_threshold", 2.0))):
                lambda p, q, a: -torch.min(torch.exp(p - q) * a, torch.exp(p - q).clamp(0.5, 2) * a),
            ("cispo", ()): lambda p, q, a: -(torch.exp(p - q).clamp(0, 4) * p * a),
            ("dro", (("beta", 0.05),)): lambda p, q, a: -(p * a - 0.025 * (p - q) ** 2),
        }
        for (name, config), formula in of.items():
            with self.subTest(name, config=config):
                output = client.forward_backward(data, name, dict(config) or None).result()
                expected = 0
                for one, found in zip(data, output.loss_fn_outputs):
                    p, q, a = (torch.tensor(x, dtype=torch.float64) for x in (
                        found["logprobs"].data, one.loss_fn_inputs["logprobs"].data, one.loss_fn_inputs["advantages"].data))
                    expected += formula(p, q, a).sum().item()
                self.assert_close(output.metrics["loss:sum"], expected, 1e-6)
        client.optim_step(types.AdamParams()).result()

    def test_custom_loss(self):
        """A loss of the client's, with targets of two columns."""
        client = self.train()
        targets = torch.tensor([[9, 60], [60, 33], [33, 7]])
        data = [types.Datum(model_input=types.ModelInput.from_ints([5, 9, 60]), loss_fn_inputs={"target_tokens": targets})]
        output = client.forward_backward_custom(data, lambda data, found: ((found[0] ** 2).sum(), {"mine": 3.0})).result()
        first = client.forward(data, "cross_entropy").result().loss_fn_outputs[0]["logprobs"]
        self.assertEqual(first.shape, [3, 2])
        expected = [[logprobs(self.model, [5, 9, 60][:i + 1] + [int(t)])[-1] for t in targets[i]] for i in range(3)]
        self.assert_close(first.to_torch(), expected, 1e-5)
        self.assert_close(output.metrics["loss:sum"], (first.to_torch() ** 2).sum().item(), 1e-5)
        client.optim_step(types.AdamParams(learning_rate=RATE)).result()
        after = client.forward(data, "cross_entropy").result().loss_fn_outputs[0]["logprobs"].to_torch()
        self.assertLess((after ** 2).sum(), (first.to_torch() ** 2).sum())

    def test_many_data(self):
        """More than a message holds: chunks of a call come last first."""
        client = self.train()
        random = numpy.random.default_rng(SEED)
        data = [datum(random.integers(0, 256, random.integers(2, 30)).tolist()) for _ in range(300)]
        output = client.forward_backward(data, "cross_entropy").result()
        self.assertEqual(len(output.loss_fn_outputs), 300)
        for one, found in list(zip(data, output.loss_fn_outputs))[::31]:
            tokens = one.model_input.to_ints() + [one.loss_fn_inputs["target_tokens"].data[-1]]
            self.assert_close(found["logprobs"].data, logprobs(self.model, tokens)[1:], 1e-4)
        self.assertGreater(client.optim_step(types.AdamParams()).result().metrics["grad_norm:mean"], 0)

    def test_refusals(self):
        client = self.train()
        bad = [("cross_entropy", datum([5, 9, 260]), "target_tokens[1]: 260 is outside the vocabulary of 260"),
               ("cross_entropy", datum([5, 9, 3], weights=[1.0]), "weights: length 1, expected 2"),
               ("gspo", datum([5, 9]), "gspo"), ("ppo", datum([5, 9]), "logprobs: ppo needs it"),
               ("cross_entropy", datum([1] * 200), "this run takes 64")]
        for loss, one, text in bad:
            with self.subTest(text):
                with self.assertRaises(tinker.RequestFailedError) as caught:
                    client.forward_backward([one], loss).result()
                self.assertEqual(caught.exception.category, types.RequestErrorCategory.User)
                self.assertIn(text, str(caught.exception))
        client.forward_backward([weighed(ROWS[0])], "cross_entropy").result()
        client.optim_step(types.AdamParams()).result()
        with self.assertRaisesRegex(tinker.RequestFailedError, "other/base"):
            self.service.create_lora_training_client("other/base", rank=4).result()

    # ---- samples

    def test_samples(self):
        client = self.service.create_sampling_client(base_model=MODEL)
        prompt, row = types.ModelInput.from_ints(ROWS[0]), ROWS[0]
        expected = score(self, self.base, [row], "--precision", "fp32")[0]
        found = client.compute_logprobs(prompt).result()
        self.assertEqual([None, *map(numpy.float32, found[1:])], [None, *map(numpy.float32, expected[1:])])
        params = types.SamplingParams(max_tokens=6, seed=SEED, temperature=1.0, stop=[])
        answer = client.sample(prompt, 3, params, include_prompt_logprobs=True, topk_prompt_logprobs=2,
                               topk_sample_logprobs=2).result()
        again = client.sample(prompt, 3, params).result()
        self.assertEqual([s.tokens for s in answer.sequences], [s.tokens for s in again.sequences])
        for sequence in answer.sequences:
            self.assertEqual((len(sequence.tokens), sequence.stop_reason), (6, "length"))
            whole = logprobs(self.model, row + sequence.tokens)[len(row):]
            self.assert_close(sequence.logprobs, whole, 1e-4)
            self.assertEqual([len(place) for place in sequence.topk_logprobs], [2] * 6)
        self.assertEqual([place and len(place) for place in answer.topk_prompt_logprobs], [None] + [2] * 6)
        # The drawn stop token is part of the sample.
        token = answer.sequences[0].tokens[2]
        cut = answer.sequences[0].tokens
        stopped = client.sample(prompt, 1, types.SamplingParams(max_tokens=6, seed=SEED, stop=[token])).result().sequences[0]
        self.assertEqual((stopped.tokens, stopped.stop_reason), (cut[:cut.index(token) + 1], "stop"))

    def test_targets_of_a_prompt(self):
        client = self.service.create_sampling_client(base_model=MODEL)
        ids = torch.full((len(ROWS[0]) - 1, 3), -1, dtype=torch.int64)
        ids[1] = torch.tensor([9, 4, 200])
        ids[4, 1] = 4
        for tensor in types.TensorData.from_torch(ids), types.TensorData.from_torch_sparse(ids, pad_value=-1):
            answer = client.sample(types.ModelInput.from_ints(ROWS[0]), 1, types.SamplingParams(max_tokens=1),
                                   target_prompt_logprobs=tensor).result().target_prompt_logprobs
            self.assertEqual(answer.shape, [6, 3])
            found = answer.to_torch()
            for row, column in (1, 0), (1, 1), (1, 2), (4, 1):
                expected = logprobs(self.model, ROWS[0][:row + 1] + [int(ids[row, column])])[-1]
                self.assert_close(found[row, column], expected, 1e-5)

    def test_snapshots(self):
        """A sampler has the weights at its place in the order; one that follows has the newest."""
        client = self.train()
        prompt = types.ModelInput.from_ints(ROWS[0])
        of = lambda sampler: sampler.compute_logprobs(prompt).result()[1:]
        first = of(client.save_weights_and_get_sampling_client())
        self.assert_close(first, logprobs(self.model, ROWS[0])[1:], 1e-5)
        for _ in range(3):
            client.forward_backward([datum(ROWS[0])], "cross_entropy")
            client.optim_step(types.AdamParams(learning_rate=RATE))
        snapshot = client.save_weights_and_get_sampling_client()
        here = client.forward([datum(ROWS[0])], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data
        self.assertEqual(list(map(numpy.float32, of(snapshot))), list(map(numpy.float32, here)))  # one answer
        self.assertGreater(sum(here), sum(first))
        named = client.save_weights_for_sampler("best").result().path
        client.forward_backward([datum(ROWS[0])], "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=RATE)).result()
        self.assertEqual(list(map(numpy.float32, of(snapshot))), list(map(numpy.float32, here)))
        saved = self.service.create_sampling_client(model_path=named)
        self.assertEqual(list(map(numpy.float32, of(saved))), list(map(numpy.float32, here)))
        self.assertEqual(saved.get_base_model(), MODEL)

    def test_cancelling(self):
        client = self.service.create_sampling_client(base_model=MODEL)
        future = client.sample(types.ModelInput.from_ints([1]), 1, types.SamplingParams(max_tokens=60, stop=[]))
        future.future().cancel()
        self.assertEqual(len(client.sample(types.ModelInput.from_ints([1]), 1, types.SamplingParams(max_tokens=2, stop=[]))
                             .result().sequences[0].tokens), 2)

    # ---- state

    def test_states(self):
        client = self.train()
        data = [datum(row) for row in ROWS]

        def step(one):
            one.forward_backward(data, "cross_entropy")
            one.optim_step(types.AdamParams(learning_rate=RATE)).result()
            return one.forward(data, "cross_entropy").result().metrics["loss:sum"]

        for _ in range(2):
            step(client)
        path = client.save_state("two", user_metadata={"of": "me"}).result().path
        expected = step(client)
        whole = self.service.create_training_client_from_state_with_optimizer(path)
        self.assertEqual(step(whole), expected)
        fresh = self.service.create_training_client_from_state(path)
        self.assertNotEqual(step(fresh), expected)
        self.assertEqual(fresh.get_info().lora_rank, RANK)
        rest = self.service.create_rest_client()
        info = rest.get_weights_info_by_tinker_path(path).result()
        self.assertEqual((info.base_model, info.lora_rank, info.train_mlp), (MODEL, RANK, True))
        run = path.removeprefix("tinker://").split("/")[0]
        found = rest.list_checkpoints(run).result().checkpoints
        self.assertEqual([(one.tinker_path, one.user_metadata) for one in found], [(path, {"of": "me"})])
        self.assertIn(run, [one.training_run_id for one in rest.list_training_runs().result().training_runs])
        self.assertEqual(rest.get_training_run(run).result().last_checkpoint.tinker_path, path)
        self.assertIn(path, [one.tinker_path for one in rest.list_user_checkpoints().result().checkpoints])
        others = self.session("tml-others").create_rest_client()
        self.assertEqual(others.list_training_runs().result().training_runs, [])
        with self.assertRaises(tinker.NotFoundError):
            others.get_weights_info_by_tinker_path(path).result()
        rest.delete_checkpoint_from_tinker_path(path).result()
        with self.assertRaises(tinker.NotFoundError):
            rest.get_weights_info_by_tinker_path(path).result()

    def test_capabilities(self):
        models = self.service.get_server_capabilities().supported_models
        self.assertEqual([(one.model_name, one.max_context_length) for one in models], [(MODEL, 64)])
        tokens = self.train().get_tokenizer().encode("ab")
        self.assertEqual(tokens, [97, 98])


if __name__ == "__main__":
    unittest.main()
