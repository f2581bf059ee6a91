package repo_test

import (
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/services/registry/internal/repo"
)

func TestChecksumAgentHoldsFilesAgainstTheirDigests(t *testing.T) {
	const sum = "6f8db599de986fab7a21625b7916589c" // of "m"
	agent := func(key, value string) string {
		return config + `model_repository_agents { agents { name: "checksum" parameters { key: "` + key + `" value: "` + value + `" } } }`
	}
	tests := map[string]struct{ config, want string }{
		"the right digest":      {agent("MD5:1/model.onnx", "6f8f57715090da2632453988d9a1501b"), ""},
		"in capital letters":    {agent("MD5:1/model.onnx", "6F8F57715090DA2632453988D9A1501B"), ""},
		"another digest":        {agent("MD5:1/model.onnx", sum), "expect: " + sum + ", got: 6f8f57715090da2632453988d9a1501b"},
		"a file that is absent": {agent("MD5:1/other.onnx", sum), "other.onnx cannot be read"},
		"a directory":           {agent("MD5:1", sum), "is not a regular file"},
		"a file outside":        {agent("MD5:../m/1/model.onnx", sum), "must stay within"},
		"another digest's name": {agent("SHA256:1/model.onnx", sum), "is not supported: give MD5:<file>"},
		"no file":               {agent("MD5:", sum), "give MD5:<file>"},
		"another agent":         {config + `model_repository_agents { agents { name: "decrypt" } }`, "checksum is the only one"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			root := tree(t, map[string]string{"m/config.pbtxt": tt.config, "m/1/model.onnx": "m"})
			got := model(t, scan(t, repo.New([]string{root}, repo.Options{})), "m").Problem
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("problem %q, want %q", got, tt.want)
			}
		})
	}
}
