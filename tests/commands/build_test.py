"""Configuring a build without the packages that only tests need. `tools/setup` installs no cmocka, and README's build
by hand must not fail for that reason; a build that requests the tests must not silently lack them."""
import os
import subprocess
import tempfile
import unittest

SOURCE = os.environ["CAMBIUM_SOURCE"]


class WithoutCmocka(unittest.TestCase):
    def configure(self, *words):
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as build:
            # A library that was looked for and not found: neither a path nor the word for "look again".
            return subprocess.run(["cmake", "-G", "Ninja", "-S", SOURCE, "-B", build, "-DCMOCKA_LIBRARY=", "-DCAMBIUM_MPI=OFF", *words],
                                  capture_output=True, text=True, timeout=300)

    def test_the_build_goes_on_without_tests(self):
        done = self.configure()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("The tests are left out", done.stdout)

    def test_who_asks_for_tests_is_refused(self):
        done = self.configure("-DCAMBIUM_TESTS=ON")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("tools/setup --tests", done.stderr)


class Help(unittest.TestCase):
    def test_the_tests_say_how_long_they_take(self):
        text = subprocess.run([f"{SOURCE}/tools/test", "--help"], capture_output=True, text=True, timeout=60).stdout
        self.assertRegex(text, r"\d+ minutes")


if __name__ == "__main__":
    unittest.main()
