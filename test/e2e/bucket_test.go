package e2e

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// bucket is one of a real object store.
type bucket struct {
	t   *testing.T
	url string
	// put uploads an object.
	put func(key string, data []byte) error
	// wrong is a variable of the environment with a wrong secret; empty if the
	// server checks none.
	wrong string
}

// upload uploads a directory below a prefix.
func (b *bucket) upload(dir, prefix string) {
	b.t.Helper()
	err := filepath.WalkDir(dir, func(name string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		return b.put(prefix+"/"+filepath.ToSlash(relative), data)
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// servedFrom goes the whole way with a real server: its models are checked,
// served, asked and polled, and served again from the cache.
func servedFrom(t *testing.T, b *bucket) {
	b.upload(examples(t), "repo")
	repository := b.url + "/repo"
	out, err := exec.CommandContext(t.Context(), program(t, "nereid"), "check", repository).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "digits") {
		t.Fatalf("check: %v\n%s", err, out)
	}
	absent, err := exec.CommandContext(t.Context(), program(t, "nereid"), "check", b.url+"-absent/repo").CombinedOutput()
	if err == nil || !strings.Contains(string(absent), "store_not_found") {
		t.Errorf("of a bucket that is not there: %v\n%s", err, absent)
	}
	if b.wrong != "" {
		wrong := exec.CommandContext(t.Context(), program(t, "nereid"), "check", repository)
		wrong.Env = append(os.Environ(), b.wrong)
		_, secret, _ := strings.Cut(b.wrong, "=")
		if out, err := wrong.CombinedOutput(); err == nil || !strings.Contains(string(out), "store_denied") || strings.Contains(string(out), secret) {
			t.Errorf("with a wrong secret: %v\n%s", err, out)
		}
	}

	flags := []string{"--allow-recording=true", "--cache-dir=" + t.TempDir(), "--model-control-mode=poll", "--repository-poll-secs=1"}
	s := start(t, repository, flags...)
	ones := strings.TrimSuffix(strings.Repeat("1,", 16), ",")
	body := fmt.Sprintf(`{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,16],"data":[%s]},{"name":"INPUT1","datatype":"INT32","shape":[1,16],"data":[%s]}]}`, ones, ones)
	if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/simple/infer", body); status != http.StatusOK {
		t.Errorf("infer: %d %s", status, text)
	}
	model, err := os.ReadFile(filepath.Join(examples(t), "simple", "1", "model.onnx"))
	if err == nil {
		err = b.put("repo/simple/2/model.onnx", model)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.awaitIndex(`"name":"simple","version":"2","state":"READY"`)
	recordsTo(t, s, b.url+"/recordings/r.rec")
	s.kill()

	again := start(t, repository, flags...)
	if again.logged("files fetched") {
		t.Error("what is in the cache was fetched again")
	}
}

// recordsTo records requests of more than one part of an upload into an object, and sends them again from it.
func recordsTo(t *testing.T, s *server, url string) {
	t.Helper()
	recorded := make(chan string, 1)
	go func() {
		out, problems, status := nereid(t, "record", "simple_identity", "--url="+s.HTTP, "--for=3s", "--out="+url)
		recorded <- fmt.Sprint(status, " ", out, problems)
	}()
	await(t, "the recording to start", nil, func() bool { return s.logged("audit: recording started") })
	random := make([]byte, 12<<20) // which zstd makes no smaller
	if _, err := rand.Read(random); err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1,1],"data":["%s"]}]}`, base64.StdEncoding.EncodeToString(random))
	if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/simple_identity/infer", body); status != http.StatusOK {
		t.Errorf("infer: %d %.200s", status, text)
	}
	if how := <-recorded; !strings.Contains(how, "1 requests, 0 lost") {
		t.Fatalf("record: %s", how)
	}
	if out, problems, status := nereid(t, "perf", "--trace="+url, "--url="+s.HTTP, "--metrics-url=none", "--fail-if=errors>0"); status != 0 {
		t.Errorf("sent again: %d %s%s", status, out, problems)
	}
}
