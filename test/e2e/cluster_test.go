package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// services are the programs of a cluster in the order of their start.
func services() []string { return []string{"registry", "scheduler", "worker", "gateway"} }

// startCluster starts NATS and each service as a process, which find each
// other over sockets in a directory, and waits until the gateway has started.
func startCluster(t testing.TB, repository string, flags ...string) *server {
	t.Helper()
	sockets := socketDir(t)
	return startServices(t, repository, func(service string) string { return "unix:" + filepath.Join(sockets, service) }, flags...)
}

// startServices starts NATS and each service as a process that listens for the
// others on an address of its own, and waits until the gateway has started.
func startServices(t testing.TB, repository string, listen func(service string) string, flags ...string) *server {
	t.Helper()
	bus := run(t, "nereid", "bus", "--listen=127.0.0.1:0", "--log-format=json")
	bus.expect("listening")
	s := &server{all: []*process{bus}}
	given := slices.Concat([]string{"--model-repository=" + repository, "--log-format=json"}, anyPorts(), flags)
	for _, service := range services() {
		args := append(partOf(t, service, given), "--nats-url="+bus.said().NATS, "--id="+service)
		if service != "gateway" {
			args = append(args, "--listen="+listen(service))
		}
		p := run(t, service, args...)
		s.all = append(s.all, p)
		switch service {
		case "worker":
			s.models = p
		case "gateway":
			s.process = p
		}
	}
	s.expect("started")
	s.HTTP, s.GRPC = s.said().HTTP, s.said().GRPC
	return s
}

// socketDir makes a directory whose path is short enough for sockets, as that
// of a test's own may not be.
func socketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "e2e") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // what is left is temporary
	return dir
}

// partOf picks the flags of nereid serve that a service takes too.
func partOf(t testing.TB, service string, flags []string) (part []string) {
	t.Helper()
	known := settingsOf(t, service)
	for _, flag := range joined(flags) {
		name, value, _ := strings.Cut(strings.TrimPrefix(flag, "--"), "=")
		if name == "id" { // of serve it is what clients see
			name, flag = "server-name", "--server-name="+value
		}
		if slices.Contains(known, name) {
			part = append(part, flag)
		}
	}
	return part
}

// joined writes flags and values of two words as one.
func joined(flags []string) (list []string) {
	for _, word := range flags {
		if strings.HasPrefix(word, "--") {
			list = append(list, word)
		} else {
			list[len(list)-1] += "=" + word
		}
	}
	return list
}

// settingsOf lists the names of a service's settings, as the program tells
// them.
func settingsOf(t testing.TB, service string) (names []string) {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), program(t, "nereid"), "config", "explain", service).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile(`(?m)^  ([a-z0-9-]+) \(NEREID_`).FindAllSubmatch(text, -1) {
		names = append(names, string(found[1]))
	}
	return names
}
