package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"

	"github.com/nereid-serving/nereid/test/ports"
)

// azurite starts the server of Azure Blob Storage that NEREID_AZURITE names, a
// script for node. It checks signatures.
func azurite(t *testing.T) *bucket {
	t.Helper()
	script := os.Getenv("NEREID_AZURITE")
	if script == "" {
		t.Skip("NEREID_AZURITE names no azurite: make azure-test fetches it")
	}
	const account, key = "nereid", "bm8tc2VjcmV0LWF0LWFsbA=="
	var free ports.Picker
	port := fmt.Sprint(free.Free(t))
	// The kind of persistence needs no directory, but the log of the database does.
	command := exec.Command("node", script, "--blobHost", "127.0.0.1", "--blobPort", port, "--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry")
	command.Dir = t.TempDir()
	command.Env = append(os.Environ(), "AZURITE_ACCOUNTS="+account+":"+key)
	background(t, command)
	endpoint := "http://127.0.0.1:" + port + "/" + account
	t.Setenv("AZURE_STORAGE_SERVICE_ENDPOINT", endpoint)
	t.Setenv("AZURE_STORAGE_ACCOUNT", account)
	t.Setenv("AZURE_STORAGE_KEY", key)
	credential, err := azblob.NewSharedKeyCredential(account, key)
	if err != nil {
		t.Fatal(err)
	}
	client, err := azblob.NewClientWithSharedKeyCredential(endpoint, credential, nil)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "azurite to make a container", nil, func() bool {
		_, err := client.CreateContainer(t.Context(), "models", nil)
		return err == nil
	})
	return &bucket{t: t, url: "as://" + account + "/models", wrong: "AZURE_STORAGE_KEY=YW5vdGhlci1zZWNyZXQ=", put: func(key string, data []byte) error {
		_, err := client.UploadBuffer(t.Context(), "models", key, data, nil)
		return err
	}}
}

// fakeGCS starts the server of Google Cloud Storage that NEREID_FAKE_GCS names.
// It knows no credentials.
func fakeGCS(t *testing.T) *bucket {
	t.Helper()
	program := os.Getenv("NEREID_FAKE_GCS")
	if program == "" {
		t.Skip("NEREID_FAKE_GCS names no fake-gcs-server: make gcs-test fetches it")
	}
	var free ports.Picker
	port := fmt.Sprint(free.Free(t))
	address := "127.0.0.1:" + port
	background(t, exec.Command(program, "-scheme", "http", "-host", "127.0.0.1", "-port", port, "-public-host", address, "-backend", "memory"))
	t.Setenv("STORAGE_EMULATOR_HOST", address)
	post := func(path, kind string, data []byte) error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+path, bytes.NewReader(data))
		if err != nil {
			return err
		}
		request.Header.Set("Content-Type", kind)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("POST %s: %s", path, response.Status)
		}
		return nil
	}
	await(t, "fake-gcs-server to make a bucket", nil, func() bool {
		return post("/storage/v1/b?project=nereid", "application/json", []byte(`{"name": "models"}`)) == nil
	})
	return &bucket{t: t, url: "gs://models", put: func(key string, data []byte) error {
		return post("/upload/storage/v1/b/models/o?uploadType=media&name="+url.QueryEscape(key), "application/octet-stream", data)
	}}
}

func TestModelsAreServedFromAzure(t *testing.T) { servedFrom(t, azurite(t)) }

func TestModelsAreServedFromGCS(t *testing.T) { servedFrom(t, fakeGCS(t)) }

func TestModelsAreServedFromS3(t *testing.T) { servedFrom(t, versitygw(t)) }

// background runs a server until the test ends, and shows what it said if the
// test has failed.
func background(t *testing.T, command *exec.Cmd) {
	t.Helper()
	var log bytes.Buffer
	command.Stdout, command.Stderr = &log, &log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill() // it may have ended
		_ = command.Wait()
		if t.Failed() {
			t.Logf("%s: %s", strings.Join(command.Args[:2], " "), log.String())
		}
	})
}
