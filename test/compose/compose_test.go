package compose

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestCluster starts the cluster once, with three workers, two gateways and
// a standby of each part that has one, and takes it through its life.
func TestCluster(t *testing.T) {
	c := start(t, map[string]int{"worker": 3, "gateway": 2, "scheduler": 2, "registry": 2})
	t.Run("versions", c.versions)
	t.Run("rules", c.rules)
	t.Run("clients", c.serveClients)
	t.Run("tenants", c.tenants)
	t.Run("spread", c.spread)
	t.Run("broken model", c.brokenModel)
	for _, lost := range losses() {
		t.Run("kill "+lost.service, func(t *testing.T) { c.survives(t, lost) })
	}
	t.Run("stop", c.stop)
}

// TestClusterOverTLS starts the cluster with certificates on both ends of its
// connections: it serves clients, tells an operator its state, and refuses who
// shows no certificate.
func TestClusterOverTLS(t *testing.T) {
	t.Setenv("COMPOSE_FILE", "docker-compose.yml:deploy/docker/tls.yml")
	c := start(t, nil)
	c.serveClients(t)
	status := []string{"run", "--rm", "nereid", "status", "--url=registry:8031", "--tls-root=/keys/authority.pem"}
	c.compose(t, append(status, "--tls-cert=/keys/certificate.pem", "--tls-key=/keys/key.pem")...)
	if out, err := c.try(status...); err == nil || !strings.Contains(out, "asks for a certificate") {
		t.Errorf("status without a certificate: %v, %s", err, out)
	}
}

// requestOfSimple is one for the model simple, in JSON.
const requestOfSimple = `{"inputs": [
	{"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]},
	{"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "data": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}]}`

// serveClients runs what the README shows.
func (c *cluster) serveClients(t *testing.T) {
	python := os.Getenv("NEREID_PYTHON")
	images, err := filepath.Glob(filepath.Join(c.root, "examples/images/*.png"))
	if err != nil || len(images) == 0 {
		t.Fatalf("no images: %v", err)
	}
	client := func(args ...string) string { return run(t, c.environment, c.root, python, args...) }
	for protocol, address := range map[string]string{"http": c.http, "grpc": c.grpc, "aio": c.grpc} {
		out := client(append([]string{"examples/clients/classify.py", "--protocol", protocol, "--url", address}, images...)...)
		lines := strings.Split(out, "\n")
		if len(lines) != len(images)+1 {
			t.Fatalf("%s: %d images, and\n%s", protocol, len(images), out)
		}
		for _, line := range lines[1:] {
			// The file, named after its digit, the digit that was read, and the confidence.
			if fields := strings.Fields(line); filepath.Base(fields[0])[:1] != fields[1] {
				t.Errorf("%s: %s", protocol, line)
			}
		}
	}
	if out := client("examples/clients/language.py", "--url", c.http, "README.md"); !strings.Contains(out, "Markdown") {
		t.Errorf("README.md is written in %s", out)
	}
	out := run(t, c.environment, c.root, "curl", "--silent", "--show-error", "--fail", c.http+"/v2/models/simple/infer", "--data",
		requestOfSimple)
	if !strings.Contains(out, "[2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]") {
		t.Errorf("curl gets %s", out)
	}
	// The models in Python, of which one calls others, and the ensembles.
	run(t, append(c.environment, "HTTP_URL="+c.http, "GRPC_URL="+c.grpc), c.root, python, "test/e2e/clients/test_examples.py")
}

// tenants holds that the limit of a tenant is one over both gateways, that it is nobody
// else's, and that any gateway explains a refusal.
func (c *cluster) tenants(t *testing.T) {
	const calls = 20
	infer := func(key string) (status int, request string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+c.http+"/v2/models/simple/infer", strings.NewReader(requestOfSimple))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Api-Key", key)
		response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r) // each at the next gateway
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		return response.StatusCode, response.Header.Get("Nereid-Request-Id")
	}
	began, refused, last := time.Now(), 0, ""
	for range calls {
		status, request := infer("free-example-key")
		if status == http.StatusTooManyRequests {
			refused, last = refused+1, request
		}
		if status, _ := infer("gold-example-key"); status != http.StatusOK {
			t.Errorf("the tenant without a limit gets %d", status)
		}
	}
	if most := 3 + time.Since(began).Seconds() + 2; refused < calls-int(most) { // a burst of 3, and what each gateway may have before its first lease
		t.Errorf("%d of %d requests were refused", refused, calls)
	}
	for range 4 { // whichever gateway is asked
		out, err := c.try("run", "--rm", "nereid", "explain", last, "--url=front:8000", "--header=X-Api-Key: free-example-key")
		if err != nil || !strings.Contains(out, "quota_exceeded") {
			t.Errorf("explain %s: %v, %s", last, err, out)
		}
	}
}

// versions holds the images' labels against what the programs say of themselves.
func (c *cluster) versions(t *testing.T) {
	said := strings.Fields(c.compose(t, "run", "--rm", "nereid", "version"))
	for line := range strings.Lines(c.compose(t, "config", "--images")) {
		image := strings.TrimSpace(line)
		label := run(t, c.environment, c.root, "docker", "inspect", "--format", `{{index .Config.Labels "org.opencontainers.image.version"}}`, image)
		if len(said) < 2 || label != said[1] {
			t.Errorf("%s says version %s, its program %v", image, label, said)
		}
	}
}

// rules has promtool run the tests of Prometheus's rules.
func (c *cluster) rules(t *testing.T) {
	c.compose(t, "run", "--rm", "--no-deps", "--workdir", "/etc/prometheus", "--entrypoint", "promtool", "prometheus",
		"test", "rules", "rules_test.yml")
}

// spread holds that all replicas work at once, by what Prometheus has of each.
func (c *cluster) spread(t *testing.T) {
	l := c.load(t, 16)
	c.await(t, "spread", func() error {
		workers, err := c.query(`nereid_worker_execution_seconds_count{model="simple"} > 0`)
		if err != nil || len(workers) != 3 {
			return fmt.Errorf("workers that have run simple: %v (%w)", workers, err)
		}
		gateways, err := c.query(`sum by (instance) (nereid_gateway_requests_total{model="simple"}) > 0`)
		if err != nil || len(gateways) != 2 {
			return fmt.Errorf("gateways that have been asked: %v (%w)", gateways, err)
		}
		return nil
	})
	if bad := unexpected(l.end(t), answered); len(bad) > 0 {
		t.Errorf("callers see %v", bad)
	}
}

// query asks Prometheus, and returns the values by instance.
func (c *cluster) query(expression string) (map[string]string, error) {
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string `json:"metric"`
				Value  [2]any            `json:"value"`
			} `json:"result"`
		} `json:"data"`
	}
	err := get("http://"+c.prometheus+"/api/v1/query?query="+url.QueryEscape(expression), &answer)
	values := map[string]string{}
	for _, r := range answer.Data.Result {
		values[r.Metric["instance"]] = fmt.Sprint(r.Value[1])
	}
	return values, err
}

// brokenModel uploads a model that cannot be served: it is listed with its
// cause, and the others go on.
func (c *cluster) brokenModel(t *testing.T) {
	c.add(t, "broken")
	if err := os.WriteFile(filepath.Join(c.models, "broken/1/model.onnx"), []byte("no model"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := c.load(t, 4)
	c.upload(t)
	c.await(t, "told", func() error {
		index := run(t, c.environment, c.root, "curl", "--silent", "--request", "POST", c.http+"/v2/repository/index")
		var models []struct{ Name, State, Reason string }
		if err := json.Unmarshal([]byte(index), &models); err != nil {
			return err
		}
		for _, m := range models {
			if m.Name == "broken" && m.State == "UNAVAILABLE" && strings.Contains(m.Reason, "model.onnx") {
				return nil
			}
		}
		return fmt.Errorf("the index is %s", index)
	})
	c.more(t, l, 100)
	if bad := unexpected(l.end(t), answered); len(bad) > 0 {
		t.Errorf("callers see %v", bad)
	}
	if err := os.RemoveAll(filepath.Join(c.models, "broken")); err != nil {
		t.Fatal(err)
	}
	c.upload(t)
}

// stop holds that every service drains within its time and ends well: what
// was taken is answered.
func (c *cluster) stop(t *testing.T) {
	l := c.load(t, 4)
	c.more(t, l, 100)
	c.compose(t, "stop")
	if bad := unexpected(l.end(t), answered, broken, "503 draining"); len(bad) > 0 {
		t.Errorf("callers see %v", bad)
	}
	all, err := c.containers()
	if err != nil {
		t.Fatal(err)
	}
	for _, container := range all {
		if container.ExitCode != 0 {
			t.Errorf("%s ended with %d", container.Name, container.ExitCode)
		}
	}
}

// container is what docker compose says of one.
type container struct {
	Name, Service, State, Health string
	ExitCode                     int
}

// containers lists those of the services, also where they have ended.
func (c *cluster) containers(services ...string) ([]container, error) {
	out, err := c.try(append([]string{"ps", "--all", "--format", "json"}, services...)...)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	var all []container
	for line := range strings.Lines(out) {
		var one container
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			return nil, fmt.Errorf("%w: %s", err, line)
		}
		all = append(all, one)
	}
	return all, nil
}

// healthy says which container of the service is not.
func (c *cluster) healthy(service string) error {
	all, err := c.containers(service)
	for _, one := range all {
		if one.Health != "healthy" {
			err = errors.Join(err, fmt.Errorf("%s is %s, %s", one.Name, one.State, one.Health))
		}
	}
	return err
}
