package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/nereid-serving/nereid/test/ports"
)

// gateway is a running versitygw, a server of S3 that checks signatures.
type gateway struct {
	t      *testing.T
	url    string // of the bucket models
	client *s3.Client
}

// versitygw starts the server that NEREID_VERSITYGW names.
func versitygw(t *testing.T) *gateway {
	t.Helper()
	program := os.Getenv("NEREID_VERSITYGW")
	if program == "" {
		t.Skip("NEREID_VERSITYGW names no versitygw: make s3-test fetches it")
	}
	const key, secret = "nereid", "no-secret-at-all"
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "models"), 0o700); err != nil {
		t.Fatal(err)
	}
	var free ports.Picker // it cannot say which one the system gave it
	address := fmt.Sprintf("127.0.0.1:%d", free.Free(t))
	command := exec.Command(program, "--port", address, "--quiet", "posix", root)
	command.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+key, "ROOT_SECRET_KEY="+secret)
	var log bytes.Buffer
	command.Stdout, command.Stderr = &log, &log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill() // it may have ended
		_ = command.Wait()
		if t.Failed() {
			t.Logf("versitygw: %s", log.String())
		}
	})
	t.Setenv("AWS_ACCESS_KEY_ID", key)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	endpoint := "http://" + address
	g := &gateway{t: t, url: "s3://" + address + "/models", client: s3.New(s3.Options{
		BaseEndpoint: &endpoint, Region: "us-east-1", UsePathStyle: true, Credentials: credentials.NewStaticCredentialsProvider(key, secret, ""),
	})}
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for limit := time.After(patience); ; {
		if _, err := g.client.ListBuckets(t.Context(), &s3.ListBucketsInput{}); err == nil {
			return g
		}
		select {
		case <-poll.C:
		case <-limit:
			t.Fatal("waited in vain for versitygw to answer")
		}
	}
}

// put uploads an object.
func (g *gateway) put(key string, data []byte) {
	g.t.Helper()
	if _, err := g.client.PutObject(g.t.Context(), &s3.PutObjectInput{Bucket: aws.String("models"), Key: &key, Body: bytes.NewReader(data)}); err != nil {
		g.t.Fatal(err)
	}
}

// upload uploads a directory below a prefix.
func (g *gateway) upload(dir, prefix string) {
	g.t.Helper()
	err := filepath.WalkDir(dir, func(name string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(dir, name)
		if err == nil {
			g.put(prefix+"/"+filepath.ToSlash(relative), data)
		}
		return err
	})
	if err != nil {
		g.t.Fatal(err)
	}
}

// The whole way with a real server of S3: checked, served, asked, polled, and
// started again from the cache.
func TestModelsAreServedFromS3(t *testing.T) {
	g := versitygw(t)
	g.upload(examples(t), "repo")
	repository := g.url + "/repo"
	out, err := exec.CommandContext(t.Context(), program(t, "nereid"), "check", repository).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "digits") {
		t.Fatalf("check: %v\n%s", err, out)
	}
	wrong := exec.CommandContext(t.Context(), program(t, "nereid"), "check", repository)
	wrong.Env = append(os.Environ(), "AWS_SECRET_ACCESS_KEY=another-secret")
	if out, err := wrong.CombinedOutput(); err == nil || !strings.Contains(string(out), "store_denied") || strings.Contains(string(out), "another-secret") {
		t.Errorf("with a wrong secret: %v\n%s", err, out)
	}

	flags := []string{"--cache-dir=" + t.TempDir(), "--model-control-mode=poll", "--repository-poll-secs=1"}
	s := start(t, repository, flags...)
	zeros := strings.TrimSuffix(strings.Repeat("1,", 16), ",")
	body := fmt.Sprintf(`{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,16],"data":[%s]},{"name":"INPUT1","datatype":"INT32","shape":[1,16],"data":[%s]}]}`, zeros, zeros)
	if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/simple/infer", body); status != http.StatusOK {
		t.Errorf("infer: %d %s", status, text)
	}
	model, err := os.ReadFile(filepath.Join(examples(t), "simple", "1", "model.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	g.put("repo/simple/2/model.onnx", model)
	s.awaitIndex(`"name":"simple","version":"2","state":"READY"`)
	s.kill()

	again := start(t, repository, flags...)
	if again.logged("files fetched") {
		t.Error("what is in the cache was fetched again")
	}
}
