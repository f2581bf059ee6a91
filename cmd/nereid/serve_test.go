package main

import "testing"

func TestMetricsListenWhereHTTPDoes(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"HTTP's address":     {[]string{"--http-address=10.0.0.1"}, "10.0.0.1"},
		"HTTP on a socket":   {[]string{"--http-address=unix:/run/http"}, "127.0.0.1"},
		"everywhere without": {[]string{"--http-address=10.0.0.1", "--allow-http=false"}, "0.0.0.0"},
		"its own":            {[]string{"--http-address=10.0.0.1", "--metrics-address=10.0.0.2"}, "10.0.0.2"},
	}
	for name, tt := range tests {
		command, text := parseServe(tt.args...)
		if command == nil {
			t.Fatal(text)
		}
		c, err := command.Model.Target.Addr().Interface().(*commands).Serve.config()
		if err != nil || c.Admin.Address != tt.want {
			t.Errorf("%s: %q, want %q; %v", name, c.Admin.Address, tt.want, err)
		}
	}
}
