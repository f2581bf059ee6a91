package main

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tritonFlag is one flag of tritonserver.
type tritonFlag struct {
	flag, value string
	// seen is how its effect is seen: the settings of serve that it changes, by their place
	// and value; or, where it is not honored, its effect.
	seen string
	// with are the flags without which it is refused.
	with []string
}

// flatSettings flattens the settings of a command line.
func flatSettings(t *testing.T, args ...string) map[string]string {
	t.Helper()
	command, text := parseServe(args...)
	if command == nil {
		t.Fatalf("%q is refused: %s", args, text)
	}
	all := make(map[string]string)
	var walk func(string, reflect.Value)
	walk = func(at string, v reflect.Value) {
		if v.Kind() != reflect.Struct {
			if v.CanInterface() {
				all[at] = fmt.Sprint(v.Interface())
			}
			return
		}
		for i := range v.NumField() {
			walk(strings.TrimPrefix(at+"."+v.Type().Field(i).Name, "."), v.Field(i))
		}
	}
	walk("", command.Selected().Target)
	return all
}

// changed lists the settings that differ, as text.
func changed(before, after map[string]string) string {
	var list []string
	for _, at := range slices.Sorted(maps.Keys(after)) {
		if after[at] != before[at] {
			list = append(list, at+"="+after[at])
		}
	}
	return strings.Join(list, " ")
}

// Every flag of tritonserver has a row, and does what the row says.
func TestEveryFlagOfTriton(t *testing.T) {
	rows := tritonFlags()
	flags := flagsByName(serveNode(t))
	for _, row := range rows {
		f := flags[row.flag]
		if f == nil {
			t.Errorf("--%s is unknown", row.flag)
			continue
		}
		argument := "--" + row.flag + "=" + row.value
		switch effect := f.Tag.Get(effectTag); effect {
		case effectRefused:
			if command, text := parseServe(argument); row.seen != effect || command != nil || !strings.Contains(text, f.Help) {
				t.Errorf("%s: the row says %q, and it is %q with %q", argument, row.seen, effect, text)
			}
		case effectNone, effectLater:
			command, text := parseServe(argument)
			if row.seen != effect || command == nil || !slices.Equal(named(command, effect), []string{"--" + row.flag}) {
				t.Errorf("%s: the row says %q, and it is %q with %q", argument, row.seen, effect, text)
			}
		default:
			if d := cmp.Diff(row.seen, changed(flatSettings(t, row.with...), flatSettings(t, append(slices.Clone(row.with), argument)...))); d != "" {
				t.Errorf("%s changes (-row +settings):\n%s", argument, d)
			}
		}
	}
	for name, f := range flags {
		if f.Tag.Has(effectTag) && !slices.ContainsFunc(rows, func(r tritonFlag) bool { return r.flag == name }) {
			t.Errorf("--%s is no flag of Triton's: give it an effect", name)
		}
	}
	for _, name := range catalog() {
		if !slices.ContainsFunc(rows, func(r tritonFlag) bool { return r.flag == name }) {
			t.Errorf("--%s has no row", name)
		}
	}
}

// tritonFlags has a row for every flag of tritonserver but --help and --version.
func tritonFlags() []tritonFlag {
	return []tritonFlag{
		{flag: "id", value: "server", seen: "Config.ID=server"},
		{flag: "exit-timeout-secs", value: "7", seen: "Config.Gateway.ExitTimeout=7"},
		{flag: "exit-on-error", value: "false", seen: "Config.ExitOnError.On=false"},
		{flag: "strict-readiness", value: "false", seen: "Config.Gateway.StrictReadiness.On=false"},
		{flag: "disable-auto-complete-config", value: "true", seen: "Config.Registry.NoAutoComplete=true"},
		{flag: "strict-model-config", value: "true", seen: "Config.Registry.StrictConfig.On=true"},
		{flag: "log-verbose", value: "1", seen: "Log.LogVerbose=1"},
		{flag: "log-info", value: "false", seen: "Log.LogInfo.On=false"},
		{flag: "log-warning", value: "false", seen: "Log.LogWarning.On=false"},
		{flag: "log-error", value: "false", seen: "Log.LogError.On=false"},
		{flag: "log-format", value: "ISO8601", seen: "Log.LogFormat=ISO8601"},
		{flag: "log-file", value: "log", seen: "Log.LogFile=log"},
		{flag: "model-repository", value: "y", seen: "Config.Registry.Repositories=[x y]"},
		{flag: "model-store", value: "y", seen: "Config.Registry.Repositories=[x y]"},
		{flag: "model-control-mode", value: "explicit", seen: "Config.Registry.Control=explicit"},
		{flag: "repository-poll-secs", value: "7", seen: "Config.Registry.Poll=7", with: []string{"--model-control-mode=poll"}},
		{flag: "load-model", value: "m", seen: "Config.Registry.LoadModels=[m]", with: []string{"--model-control-mode=explicit"}},
		{flag: "model-config-name", value: "fast", seen: "Config.Registry.ConfigName=fast"},
		{flag: "model-load-thread-count", value: "7", seen: "Config.Worker.LoadConcurrency=7"},
		{flag: "model-load-retry-count", value: "7", seen: "Config.Worker.LoadRetries=7"},
		{flag: "model-namespacing", value: "true", seen: "Config.Registry.Namespacing.On=true"},
		{flag: "enable-peer-access", value: "false", seen: effectNone},
		{flag: "allow-http", value: "false", seen: "Config.Gateway.AllowHTTP.On=false"},
		{flag: "http-address", value: "127.0.0.1", seen: "Config.Gateway.HTTPAddress=127.0.0.1"},
		{flag: "http-port", value: "9000", seen: "Config.Gateway.HTTPPort=9000"},
		{flag: "reuse-http-port", value: "true", seen: "Config.Gateway.Connections.ReuseHTTP.On=true"},
		{flag: "http-header-forward-pattern", value: "X-.*", seen: "Config.Gateway.Connections.HTTPHeaders=X-.*"},
		{flag: "http-thread-count", value: "7", seen: effectNone},
		{flag: "http-max-input-size", value: "1000", seen: "Config.Gateway.MaxInput=1000"},
		{flag: "http-restricted-api", value: "logging:key=value", seen: "Config.Gateway.Connections.HTTPRestrict=[logging:key=value]"},
		{flag: "allow-grpc", value: "false", seen: "Config.Gateway.AllowGRPC.On=false"},
		{flag: "grpc-address", value: "127.0.0.1", seen: "Config.Gateway.GRPCAddress=127.0.0.1"},
		{flag: "grpc-port", value: "9001", seen: "Config.Gateway.GRPCPort=9001"},
		{flag: "reuse-grpc-port", value: "true", seen: "Config.Gateway.Connections.ReuseGRPC.On=true"},
		{flag: "grpc-header-forward-pattern", value: "x-.*", seen: "Config.Gateway.Connections.GRPCHeaders=x-.*"},
		{flag: "grpc-infer-thread-count", value: "7", seen: effectNone},
		{flag: "grpc-infer-allocation-pool-size", value: "7", seen: effectNone},
		{flag: "grpc-max-response-pool-size", value: "7", seen: effectNone},
		{flag: "grpc-use-ssl", value: "true", seen: "Config.Gateway.Connections.SSL.On=true", with: []string{"--grpc-server-cert=c", "--grpc-server-key=k"}},
		{flag: "grpc-use-ssl-mutual", value: "true", seen: "Config.Gateway.Connections.Mutual.On=true", with: []string{"--grpc-server-cert=c", "--grpc-server-key=k", "--grpc-root-cert=r"}},
		{flag: "grpc-server-cert", value: "c", seen: "Config.Gateway.Connections.Certificate=c"},
		{flag: "grpc-server-key", value: "k", seen: "Config.Gateway.Connections.Key=k"},
		{flag: "grpc-root-cert", value: "r", seen: "Config.Gateway.Connections.Roots=r"},
		{flag: "grpc-infer-response-compression-level", value: "low", seen: "Config.Gateway.Connections.Compression=low"},
		{flag: "grpc-keepalive-time", value: "7", seen: "Config.Gateway.Connections.PingTime=7"},
		{flag: "grpc-keepalive-timeout", value: "7", seen: "Config.Gateway.Connections.PingTimeout=7"},
		{flag: "grpc-keepalive-permit-without-calls", value: "true", seen: "Config.Gateway.Connections.PingIdle.On=true"},
		{flag: "grpc-http2-max-pings-without-data", value: "7", seen: effectNone},
		{flag: "grpc-http2-min-recv-ping-interval-without-data", value: "7", seen: "Config.Gateway.Connections.PingInterval=7"},
		{flag: "grpc-http2-max-ping-strikes", value: "0", seen: "Config.Gateway.Connections.PingStrikes=0"},
		{flag: "grpc-max-connection-age", value: "7", seen: "Config.Gateway.Connections.MaxAge=7"},
		{flag: "grpc-max-connection-age-grace", value: "7", seen: "Config.Gateway.Connections.Grace=7"},
		{flag: "grpc-restricted-protocol", value: "logging:key=value", seen: "Config.Gateway.Connections.GRPCRestrict=[logging:key=value]"},
		{flag: "allow-metrics", value: "false", seen: "Config.Admin.AllowMetrics.On=false"},
		{flag: "allow-gpu-metrics", value: "false", seen: "Config.Host.GPUMetrics.On=false"},
		{flag: "allow-cpu-metrics", value: "false", seen: "Config.Host.CPUMetrics.On=false"},
		{flag: "metrics-address", value: "127.0.0.1", seen: "Config.Admin.MetricsAddress=127.0.0.1"},
		{flag: "metrics-port", value: "9002", seen: "Config.Admin.MetricsPort=9002"},
		{flag: "metrics-interval-ms", value: "7", seen: "Config.Host.MetricsPeriod=7"},
		{flag: "metrics-config", value: "summary_latencies=true", seen: "Config.Scheduler.MetricsConfig=[summary_latencies=true]"},
		{flag: "trace-config", value: "mode=triton", seen: effectLater},
		{flag: "trace-file", value: "f", seen: effectLater},
		{flag: "trace-level", value: "TIMESTAMPS", seen: effectLater},
		{flag: "trace-rate", value: "7", seen: effectLater},
		{flag: "trace-count", value: "7", seen: effectLater},
		{flag: "trace-log-frequency", value: "7", seen: effectLater},
		{flag: "backend-directory", value: ".", seen: "Config.Worker.BackendDirectory=."},
		{flag: "backend-config", value: "onnxruntime,default-max-batch-size=4", seen: "Config.Worker.BackendConfig=[onnxruntime,default-max-batch-size=4]"},
		{flag: "repoagent-directory", value: "d", seen: effectNone},
		{flag: "cache-config", value: "local,size=1000000", seen: "Config.Gateway.Cache.Config=[local,size=1000000]"},
		{flag: "cache-directory", value: "d", seen: effectNone},
		{flag: "response-cache-byte-size", value: "1000000", seen: "Config.Gateway.Cache.Bytes=1000000"},
		{flag: "rate-limit", value: "execution_count", seen: "Config.Scheduler.RateLimit=execution_count"},
		{flag: "rate-limit-resource", value: "R:4", seen: "Config.Scheduler.RateLimitResources=[R:4]", with: []string{"--rate-limit=execution_count"}},
		{flag: "pinned-memory-pool-byte-size", value: "7", seen: "Config.Worker.PinnedMemory=7"},
		{flag: "cuda-memory-pool-byte-size", value: "0:7", seen: effectNone},
		{flag: "cuda-virtual-address-size", value: "0:7", seen: effectNone},
		{flag: "min-supported-compute-capability", value: "7", seen: effectNone},
		{flag: "buffer-manager-thread-count", value: "7", seen: effectNone},
		{flag: "host-policy", value: "cpu,cpu-cores=0", seen: "Config.Worker.HostPolicy=[cpu,cpu-cores=0]"},
		{flag: "model-load-gpu-limit", value: "0:0.5", seen: effectNone},
		{flag: "allow-client-shm", value: "true", seen: "Config.Gateway.SharedMemory.Allow.On=true"},
		{flag: "allow-sagemaker", value: "true", seen: effectRefused},
		{flag: "sagemaker-port", value: "7", seen: effectNone},
		{flag: "sagemaker-safe-port-range", value: "7-8", seen: effectNone},
		{flag: "sagemaker-thread-count", value: "7", seen: effectNone},
		{flag: "allow-vertex-ai", value: "true", seen: effectRefused},
		{flag: "vertex-ai-port", value: "7", seen: effectNone},
		{flag: "vertex-ai-thread-count", value: "7", seen: effectNone},
		{flag: "vertex-ai-default-model", value: "m", seen: effectNone},
	}
}

// catalog lists what tritonserver --help lists.
func catalog() []string {
	return strings.Fields(`
		id exit-timeout-secs exit-on-error strict-readiness disable-auto-complete-config strict-model-config log-verbose log-info
		log-warning log-error log-format log-file model-repository model-store model-control-mode repository-poll-secs load-model
		model-config-name model-load-thread-count model-load-retry-count model-namespacing enable-peer-access allow-http http-address
		http-port reuse-http-port http-header-forward-pattern http-thread-count http-max-input-size http-restricted-api allow-grpc
		grpc-address grpc-port reuse-grpc-port grpc-header-forward-pattern grpc-infer-thread-count grpc-infer-allocation-pool-size
		grpc-max-response-pool-size grpc-use-ssl grpc-use-ssl-mutual grpc-server-cert grpc-server-key grpc-root-cert
		grpc-infer-response-compression-level grpc-keepalive-time grpc-keepalive-timeout grpc-keepalive-permit-without-calls
		grpc-http2-max-pings-without-data grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes
		grpc-max-connection-age grpc-max-connection-age-grace grpc-restricted-protocol allow-metrics allow-gpu-metrics allow-cpu-metrics
		metrics-address metrics-port metrics-interval-ms metrics-config trace-config trace-file trace-level trace-rate trace-count
		trace-log-frequency backend-directory backend-config repoagent-directory cache-config cache-directory response-cache-byte-size
		rate-limit rate-limit-resource pinned-memory-pool-byte-size cuda-memory-pool-byte-size cuda-virtual-address-size
		min-supported-compute-capability buffer-manager-thread-count host-policy model-load-gpu-limit allow-client-shm allow-sagemaker
		sagemaker-port sagemaker-safe-port-range sagemaker-thread-count allow-vertex-ai vertex-ai-port vertex-ai-thread-count
		vertex-ai-default-model`)
}
