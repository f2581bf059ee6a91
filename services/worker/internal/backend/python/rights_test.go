package python_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// tells answers with what its process is, and what it may do. The calls are such as do
// nothing where they are let through: the arguments of each are wrong.
const tells = imports + `
import ctypes, json, subprocess, threading
libc = ctypes.CDLL(None, use_errno=True)
calls = {}
for name, arguments in ("ptrace", (-1, 0, 0, 0)), ("unshare", (1,)), ("mount", (0, 0, 0, 0, 0)), ("setns", (-1, 0)), ("clone", (NEWUSER_AND_FS, 0, 0, 0, 0)):
    call = getattr(libc, name) if name != "clone" else lambda *all: libc.syscall(CLONE, *all)
    calls[name] = ctypes.get_errno() if call(*arguments) == -1 else 0

class TritonPythonModel:
    def execute(self, requests):
        done = []
        thread = threading.Thread(target=lambda: done.append(float(np.linalg.inv(np.eye(300)).sum())))
        thread.start()
        thread.join()
        told = {
            "calls": calls, "thread": done, "process": subprocess.check_output(["echo", "here"], text=True), "uid": os.getuid(), "gid": os.getgid(),
            "groups": os.getgroups(), "environment": dict(os.environ),
            "files": [os.readlink("/proc/self/fd/" + name) for name in os.listdir("/proc/self/fd") if os.path.lexists("/proc/self/fd/" + name)],
            "status": dict(line.replace("\t", "").rstrip().split(":", 1) for line in open("/proc/self/status")),
        }
        return [pb.InferenceResponse([pb.Tensor("TOLD", np.array([json.dumps(told)], np.object_))]) for r in requests]
`

// telling is what the model tells says.
type telling struct {
	Calls       map[string]int
	Thread      []float64
	Process     string
	UID, GID    int
	Groups      []int
	Environment map[string]string
	Files       []string
	Status      map[string]string
}

func tell(t *testing.T, settings map[string]string) (*world, telling) {
	t.Helper()
	code := strings.NewReplacer("CLONE", strconv.Itoa(unix.SYS_CLONE), "NEWUSER_AND_FS", strconv.Itoa(unix.CLONE_NEWUSER|unix.CLONE_FS)).Replace(tells)
	w := run(t, code, options{settings: settings, config: modelconfig.Config{Outputs: io(tensor.Bytes, "TOLD")}})
	r := w.infer(&infer.Request{})
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	defer r.Release()
	data, err := r.Outputs[0].Data.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	text, _, err := tensor.CutBytes(data)
	if err != nil {
		t.Fatal(err)
	}
	var told telling
	if err := json.Unmarshal(text, &told); err != nil {
		t.Fatal(err)
	}
	return w, told
}

func TestModelsHaveFewRights(t *testing.T) {
	t.Setenv("NEREID_SECRET", "s")
	t.Setenv("OTHERS", "are passed")
	// What the worker's parent left open.
	pipe := make([]int, 2)
	if err := unix.Pipe(pipe); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = unix.Close(pipe[0]), unix.Close(pipe[1])
	})
	w, told := tell(t, nil)
	if strings.Contains(w.logged(), "models have rights that they do not need") {
		t.Skip("the kernel confines nothing")
	}
	for call, e := range told.Calls {
		if e != int(unix.EPERM) {
			t.Errorf("%s: errno %d, want EPERM", call, e)
		}
	}
	if told.Status["NoNewPrivs"] != "1" || told.Status["Seccomp"] != "2" {
		t.Errorf("no new privileges: %s, system calls filtered: %s", told.Status["NoNewPrivs"], told.Status["Seccomp"])
	}
	capabilities, err := strconv.ParseUint(told.Status["CapBnd"], 16, 64)
	if err != nil || capabilities&(1<<unix.CAP_SYS_ADMIN|1<<unix.CAP_SYS_MODULE|1<<unix.CAP_NET_ADMIN|1<<unix.CAP_SYS_PTRACE) != 0 {
		t.Errorf("capabilities %s, %v", told.Status["CapBnd"], err)
	}
	if os.Geteuid() == 0 && told.Status["CapEff"] != told.Status["CapBnd"] {
		t.Errorf("root has capabilities %s of %s", told.Status["CapEff"], told.Status["CapBnd"])
	}
	if told.Process != "here\n" || !slices.Equal(told.Thread, []float64{300}) {
		t.Errorf("a process says %q, a thread %v", told.Process, told.Thread)
	}
	if told.Environment["OTHERS"] != "are passed" || told.Environment["NEREID_SECRET"] != "" {
		t.Errorf("environment %v", told.Environment)
	}
	if told.UID != os.Getuid() {
		t.Errorf("it runs as %d", told.UID)
	}
	for _, file := range told.Files {
		if strings.HasPrefix(file, "pipe:") && strings.Contains(file, inode(t, pipe[0])) {
			t.Errorf("it has files %v", told.Files)
		}
	}
}

// inode is the number of a file.
func inode(t *testing.T, fd int) string {
	t.Helper()
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil {
		t.Fatal(err)
	}
	return strconv.FormatUint(s.Ino, 10)
}

func TestModelsInheritRightsWhereThatIsSet(t *testing.T) {
	_, told := tell(t, map[string]string{"stub-rights": "inherit"})
	own, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Seccomp", "CapBnd"} {
		if !strings.Contains(string(own), name+":\t"+told.Status[name]+"\n") {
			t.Errorf("%s is %s, other than the worker's", name, told.Status[name])
		}
	}
	if told.Status["NoNewPrivs"] != "1" {
		t.Error("it may gain privileges")
	}
}

// passable lets others into the directories above a file that the test has made.
func passable(t *testing.T, dir string) {
	t.Helper()
	for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func TestModelsRunAsAnotherUser(t *testing.T) {
	const python = "/usr/bin/python3" // that of the tests may lie where others may not go
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	var skipped bool // there is no interpreter that others may use
	t.Run("by its numbers", func(t *testing.T) {
		skipped = true
		temporary := t.TempDir()
		passable(t, temporary)
		t.Setenv("TMPDIR", temporary)
		settings := map[string]string{"python-path": python, "stub-user": "54321:54322"}
		if _, err := load(t, addSub, options{settings: settings, config: numbers()}); err != nil && errs.Of(err) == errs.LibraryMissing {
			t.Skipf("%s has no numpy: %v", python, err)
		}
		skipped = false
		_, told := tell(t, settings)
		if told.UID != 54321 || told.GID != 54322 || len(told.Groups) != 0 || told.Environment["HOME"] != "/" || told.Status["CapEff"] != "0000000000000000" {
			t.Errorf("it runs as %d:%d of %v with %s at home in %s", told.UID, told.GID, told.Groups, told.Status["CapEff"], told.Environment["HOME"])
		}
	})
	if skipped {
		t.Skip("see above")
	}
	t.Run("not into a closed directory", func(t *testing.T) {
		_, err := load(t, addSub, options{settings: map[string]string{"python-path": python, "stub-user": "54321:54322"}, config: numbers()})
		if errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), "is closed to user 54321") {
			t.Error(err)
		}
	})
}

func TestUsersThatAreNone(t *testing.T) {
	want := "knows no such user"
	if os.Geteuid() != 0 {
		want = "runs as root"
	}
	if _, err := load(t, addSub, options{settings: map[string]string{"stub-user": "nobody-at-all"}, config: numbers()}); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
}
