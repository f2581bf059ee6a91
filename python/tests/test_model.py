"""How a model's files are imported."""

import os
import subprocess
import sys
import tempfile
import unittest

MODEL = "import helper\n\n\nclass TritonPythonModel:\n    execute = %d + helper.more\n"
PRINT = """
import sys
from nereid.stub.model import Model
args = {"model_name": "m", "model_instance_name": "m_0_0"}
print(Model(sys.argv[1] + "/model.py", args, sys.argv[1]).type.execute)
"""


class TestFiles(unittest.TestCase):
    def test_files_that_were_saved_twice_in_a_second_are_read_again(self) -> None:
        with tempfile.TemporaryDirectory() as model:
            version = os.path.join(model, "1")
            os.mkdir(version)
            for number in (1, 2):
                for name, text in (("model.py", MODEL % number), ("helper.py", "more = %d\n" % number)):
                    file = os.path.join(version, name)
                    with open(file, "w") as out:
                        out.write(text)
                    os.utime(file, (1000000000, 1000000000))
                environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
                got = subprocess.run([sys.executable, "-c", PRINT, version], stdout=subprocess.PIPE, check=True, env=environment).stdout
                self.assertEqual(int(got), 2 * number)
