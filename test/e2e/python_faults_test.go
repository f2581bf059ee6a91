package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// faulty are models that do what they are told, and whose processes, with all that
// they begin, are known by a mark.
type faulty struct {
	*server
	// dir is where the models leave files, repository where they are.
	dir, repository string
	mark            string
}

// faultyModels starts a deployment on copies of the model that does what it is told.
func faultyModels(t *testing.T, names []string, flags ...string) faulty {
	t.Helper()
	f := faulty{dir: t.TempDir(), repository: t.TempDir()}
	f.mark = "FAULTS_DIR=" + f.dir
	t.Setenv("FAULTS_DIR", f.dir)
	for _, name := range names {
		if err := os.CopyFS(filepath.Join(f.repository, name), os.DirFS(filepath.Join("testdata", "faults"))); err != nil {
			t.Fatal(err)
		}
	}
	f.server = start(t, f.repository, append(flags, "--disable-auto-complete-config")...)
	return f
}

// processes are all of the models, with what they have begun.
func (f faulty) processes() (ids []int) {
	f.t.Helper()
	list, err := os.ReadDir("/proc")
	if err != nil {
		f.t.Fatal(err)
	}
	for _, entry := range list {
		id, err := strconv.Atoi(entry.Name())
		if err != nil || slices.ContainsFunc(f.all, func(p *process) bool { return p.command.Process.Pid == id }) {
			continue
		}
		// One that has ended has no environment, even if nobody has asked how.
		environment, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if err == nil && bytes.Contains(environment, []byte(f.mark+"\x00")) {
			ids = append(ids, id)
		}
	}
	return ids
}

// nothingLeft waits until all that belonged to the models has ended.
func (f faulty) nothingLeft() {
	f.t.Helper()
	await(f.t, "the end of all processes of the models", nil, func() bool { return len(f.processes()) == 0 })
}

// death is how the log tells of the end of a stub.
type death struct {
	Msg, Model, Cause string
	LastLines         []string `json:"last_lines"`
}

func (f faulty) deaths() map[string]death {
	all := make(map[string]death)
	for _, text := range strings.Split(f.text(), "\n") {
		var d death
		if json.Unmarshal([]byte(text), &d) == nil && d.Msg == "stub ended" {
			all[d.Model] = d
		}
	}
	return all
}

// TestFaultsOfPythonModels has the processes of Python models die, hang and misbehave
// under the load of the real clients: each request has one answer, the process comes
// back, and the log has the cause.
func TestFaultsOfPythonModels(t *testing.T) {
	causes := map[string]string{
		"kill":      "it was killed (SIGKILL)",
		"leave":     "it ended with exit status 3; its last line was: told to leave",
		"crash":     "it was ended by signal 11 (segmentation fault)",
		"interrupt": "it was killed: a stub may not send a message of ",
		"hang":      "it was killed: it went on with a batch for 2s after all of its requests were canceled",
	}
	survived := []string{"allocate", "complain", "babble", "fork"}
	names := survived
	for name := range causes {
		names = append(names, name)
	}
	s := faultyModels(t, names, "--backend-config=python,stub-timeout-seconds=2")
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC}, "test/e2e/clients/test_python_faults.py", "-v")
	s.wantMetrics(inFlight(0))
	s.stop()
	s.nothingLeft()
	deaths := s.deaths()
	for _, name := range survived {
		if d, ok := deaths[name]; ok {
			t.Errorf("the process of %s has ended: %s", name, d.Cause)
		}
	}
	for name, want := range causes {
		d := deaths[name]
		if !strings.HasPrefix(d.Cause, want) {
			t.Errorf("the process of %s has ended for %q, want %q", name, d.Cause, want)
		}
		if last := "told to " + name; name != "kill" && !slices.Contains(d.LastLines, last) {
			t.Errorf("the last lines of %s are %q, without %q", name, d.LastLines, last)
		}
	}
	for _, want := range []string{`"stacktrace":"`, `raise ValueError(\"told to complain\")`, "\uFFFD\\u0000 no text \uFFFD"} {
		if !strings.Contains(s.text(), want) {
			t.Errorf("the log lacks %s", want)
		}
	}
}

// ask has a model do something, and returns the process that it answers with; 0 and the
// error if it has one.
func (f faulty) ask(model, how string) (process int, reason string) {
	return f.askAt(f.HTTP, model, how)
}

func (f faulty) askAt(address, model, how string) (process int, reason string) {
	status, text := f.do(http.MethodPost, address+"/v2/models/"+model+"/infer",
		fmt.Sprintf(`{"inputs":[{"name":"HOW","datatype":"BYTES","shape":[1],"data":[%q]},{"name":"N","datatype":"INT32","shape":[1],"data":[1]}],"outputs":[{"name":"PROCESS"}]}`, how))
	_, data, _ := strings.Cut(text, `"data":[`)
	if _, err := fmt.Sscanf(data, "%d]", &process); status != http.StatusOK || err != nil {
		return 0, fmt.Sprintf("%d %s", status, text)
	}
	return process, ""
}

// must is ask for what does not fail.
func (f faulty) must(model, how string) (process int) {
	f.t.Helper()
	process, reason := f.ask(model, how)
	if reason != "" {
		f.t.Fatalf("%s %q: %s", model, how, reason)
	}
	return process
}

// left waits for a file that a model leaves.
func (f faulty) left(name string) {
	f.t.Helper()
	await(f.t, name, nil, func() bool {
		_, err := os.Stat(filepath.Join(f.dir, name))
		return err == nil
	})
}

// TestPythonModelsAreFinalized has the requests that a model was given end before it
// is finalized, whatever ends it.
func TestPythonModelsAreFinalized(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s faulty){
		"unload":  func(t *testing.T, s faulty) { s.control(t, "unload", "m", "", http.StatusOK, "") },
		"SIGTERM": func(_ *testing.T, s faulty) { s.models.signal(syscall.SIGTERM) },
		"Ctrl-C":  func(_ *testing.T, s faulty) { s.models.signal(syscall.SIGINT) },
	} {
		t.Run(name, func(t *testing.T) {
			s := faultyModels(t, []string{"m"}, "--model-control-mode=explicit", "--load-model=m")
			process := s.must("m", "")
			answered := make(chan string, 1)
			go func() {
				_, reason := s.ask("m", "wait")
				answered <- reason
			}()
			s.left("waits")
			end(t, s)
			if err := os.WriteFile(filepath.Join(s.dir, "go"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if reason := <-answered; reason != "" {
				t.Errorf("the request that was accepted: %s", reason)
			}
			s.left(fmt.Sprintf("finalized-m-%d", process))
			s.nothingLeft()
		})
	}
}

// restart starts the process that runs models once more.
func (f *faulty) restart() {
	f.t.Helper()
	before := f.models
	name := filepath.Base(before.command.Path)
	f.models = run(f.t, name, before.command.Args[1:]...)
	f.all[slices.Index(f.all, before)] = f.models
	if f.process == before {
		f.process = f.models
		f.expect("started")
		f.HTTP, f.GRPC = f.said().HTTP, f.said().GRPC
	}
}

// TestPythonModelsDieWithTheirWorker kills the worker under load: nothing of its models
// is left, and they come back with it.
func TestPythonModelsDieWithTheirWorker(t *testing.T) {
	s := faultyModels(t, []string{"m", "twin"})
	before := s.must("m", "")
	s.must("m", "fork")
	s.must("m", "start")
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var answered, failed atomic.Int64
	address := s.HTTP
	for i := range 8 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if _, reason := s.askAt(address, []string{"m", "twin"}[i%2], ""); reason == "" {
					answered.Add(1)
				} else if failed.Add(1); !clustered() {
					return
				}
			}
		})
	}
	s.eventually("answers", func() bool { return answered.Load() > 50 })
	s.models.kill()
	s.nothingLeft()
	if failed.Load() == 0 && !clustered() {
		t.Error("no request has failed of those that the server had")
	}
	s.restart()
	s.eventually("the models", func() bool {
		first, _ := s.ask("m", "")
		second, _ := s.ask("twin", "")
		return first != 0 && first != before && second != 0
	})
	stop()
	clients.Wait()
	s.wantMetrics(inFlight(0))
}

// TestNoRequestFailsWhilePythonModelsAreReloaded has models change under load: each
// answer is that of a content, and the last that of the last.
func TestNoRequestFailsWhilePythonModelsAreReloaded(t *testing.T) {
	dir := repository(t, map[string]string{"triple/1/model.py": multiplying("1")})
	s := start(t, dir, "--model-control-mode=explicit", "--load-model=triple")
	infer := func() (status int, text string) {
		return s.do(http.MethodPost, s.HTTP+"/v2/models/triple/infer", twoX)
	}
	s.eventually("the model", func() bool { // whose configuration a worker completes
		status, _ := infer()
		return status == http.StatusOK
	})
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var answered atomic.Int64
	for range 6 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if status, text := infer(); status != http.StatusOK {
					t.Errorf("%d %s", status, text)
					return
				}
				answered.Add(1)
			}
		})
	}
	for factor := 2; factor <= 5; factor++ {
		rewrite(t, filepath.Join(dir, "triple", "1", "model.py"), multiplying(strconv.Itoa(factor)))
		s.control(t, "load", "triple", "", http.StatusOK, "")
		want := fmt.Sprintf(`"data":[%d]`, 2*factor)
		s.eventually("the answer "+want, func() bool {
			_, text := infer()
			return strings.Contains(text, want)
		})
		before := answered.Load()
		s.eventually("more answers", func() bool { return answered.Load() > before+20 || t.Failed() })
	}
	stop()
	clients.Wait()
	s.wantMetrics(inFlight(0))
}
