package compose

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/lifecycle"
)

// patience bounds what a test waits for; no test measures it.
const patience = 3 * time.Minute

// cluster is a compose project of this test alone, with ports and volumes of
// its own.
type cluster struct {
	root        string // of the repository
	models      string // the directory that is uploaded
	environment []string
	http, grpc  string // addresses of the front
	prometheus  string
}

// start builds and starts the whole cluster and removes it with the test.
func start(t *testing.T, scale map[string]int) *cluster {
	t.Helper()
	if os.Getenv("NEREID_COMPOSE") == "" {
		t.Skip("needs docker and minutes: run make compose-test")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{root: root, models: t.TempDir()}
	if err := os.CopyFS(c.models, os.DirFS(filepath.Join(root, "examples/models"))); err != nil {
		t.Fatal(err)
	}
	project := fmt.Sprintf("nereid-test-%d", os.Getpid())
	c.environment = append(os.Environ(),
		"COMPOSE_PROJECT_NAME="+project, "COMPOSE_PROFILES=observability", "NEREID_TAG="+project, "MODELS="+c.models,
		"NEREID_HTTP_PORT=0", "NEREID_GRPC_PORT=0", "NEREID_METRICS_PORT=0", "NEREID_PROMETHEUS_PORT=0", "NEREID_REPOSITORY_POLL_SECS=1")
	t.Cleanup(func() { c.remove(t, project) })
	c.compose(t, "build", "--quiet")
	up := []string{"up", "--detach"}
	for service, replicas := range scale {
		up = append(up, "--scale", service+"="+strconv.Itoa(replicas))
	}
	c.compose(t, up...)
	c.http, c.grpc, c.prometheus = c.port(t, "front", 8000), c.port(t, "front", 8001), c.port(t, "prometheus", 9090)
	c.await(t, "ready", func() error { return get("http://"+c.http+"/v2/health/ready", nil) })
	return c
}

// remove takes everything away, and says what is left.
func (c *cluster) remove(t *testing.T, project string) {
	t.Helper()
	if t.Failed() {
		if logs, err := c.try("logs", "--no-color", "--tail=60"); err == nil {
			t.Log(logs)
		}
	}
	c.compose(t, "down", "--volumes", "--remove-orphans", "--rmi", "all", "--timeout", "60")
	label := "label=com.docker.compose.project=" + project
	for _, left := range [][]string{
		{"ps", "--all", "--quiet", "--filter", label},
		{"volume", "ls", "--quiet", "--filter", label},
		{"network", "ls", "--quiet", "--filter", label},
		{"images", "--quiet", "nereid/*:" + project},
	} {
		if out := run(t, c.environment, c.root, "docker", left...); out != "" {
			t.Errorf("docker %s leaves %s", strings.Join(left, " "), out)
		}
	}
}

// compose runs docker compose, which must succeed, and returns its output.
func (c *cluster) compose(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, c.environment, c.root, "docker", append([]string{"compose"}, args...)...)
}

func (c *cluster) try(args ...string) (string, error) {
	command := exec.Command("docker", append([]string{"compose"}, args...)...)
	command.Dir, command.Env = c.root, c.environment
	out, err := command.CombinedOutput()
	return string(out), err
}

func run(t *testing.T, environment []string, dir, name string, args ...string) string {
	t.Helper()
	command := exec.Command(name, args...)
	command.Dir, command.Env = dir, environment
	out, err := command.Output()
	if err != nil {
		said := ""
		if exit := new(exec.ExitError); errors.As(err, &exit) {
			said = string(exit.Stderr)
		}
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, said)
	}
	return strings.TrimSpace(string(out))
}

// port is the address at which the host reaches a service's port.
func (c *cluster) port(t *testing.T, service string, port int) string {
	t.Helper()
	_, number, ok := strings.Cut(c.compose(t, "port", service, strconv.Itoa(port)), ":")
	if !ok {
		t.Fatalf("%s shows no port %d", service, port)
	}
	return "localhost:" + number
}

// await waits until the condition holds.
func (c *cluster) await(t *testing.T, what string, condition func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := condition()
		if err == nil {
			return
		}
		if lifecycle.Pause(ctx, 200*time.Millisecond); ctx.Err() != nil {
			states, _ := c.try("ps", "--all")
			t.Fatalf("not %s: %v\n%s", what, err, states)
		}
	}
}

// get asks over HTTP, and reads the response's JSON if into is not nil.
func get(url string, into any) error {
	response, err := http.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(into)
}

// upload makes the object store hold what the directory of models holds.
func (c *cluster) upload(t *testing.T) {
	t.Helper()
	c.compose(t, "run", "--rm", "--quiet-pull", "upload")
}

// add puts a copy of the model simple under a new name into the directory.
func (c *cluster) add(t *testing.T, name string) {
	t.Helper()
	source := os.DirFS(filepath.Join(c.models, "simple"))
	target := filepath.Join(c.models, name)
	if err := os.CopyFS(target, source); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(target, "config.pbtxt")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.Replace(string(text), `name: "simple"`, fmt.Sprintf("name: %q", name), 1))
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// served waits until every gateway that is asked says that the model is ready.
func (c *cluster) served(t *testing.T, model string) {
	t.Helper()
	c.await(t, "serving "+model, func() error { return get("http://"+c.http+"/v2/models/"+model+"/ready", nil) })
}
