package errs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
)

func TestReasonDecidesStatus(t *testing.T) {
	tests := []struct {
		reason errs.Reason
		http   int
		grpc   uint32
		retry  bool
	}{
		{errs.Bug, 500, 13, false},
		{errs.ModelNotFound, 404, 5, false},
		{errs.ModelNotReady, 503, 14, true},
		{errs.Canceled, 400, 1, false},
		{errs.TensorDataCount, 500, 13, false},
		{errs.MaxQueueSize, 503, 14, true},
		{errs.QueueFull, 429, 8, true},
		{errs.DeadlineQueue, 504, 4, false},
		{errs.APIRestricted, 403, 14, false},
		{errs.AlreadyExists, 400, 6, false},
		{errs.Reason("no_such_reason"), 500, 13, false},
	}
	for _, tt := range tests {
		t.Run(string(tt.reason), func(t *testing.T) {
			if got := tt.reason.HTTP(); got != tt.http {
				t.Errorf("HTTP() = %d, want %d", got, tt.http)
			}
			if got := tt.reason.GRPC(); got != tt.grpc {
				t.Errorf("GRPC() = %d, want %d", got, tt.grpc)
			}
			if got := tt.reason.Retryable(); got != tt.retry {
				t.Errorf("Retryable() = %t, want %t", got, tt.retry)
			}
		})
	}
}

func TestEveryReasonIsComplete(t *testing.T) {
	for _, r := range errs.Reasons() {
		if !r.Known() || r.Summary() == "" || r.HTTP() < 400 || r.GRPC() == 0 || r.GRPC() > 16 {
			t.Errorf("reason %q: known %t, status %d, code %d, summary %q", r, r.Known(), r.HTTP(), r.GRPC(), r.Summary())
		}
	}
}

func TestOfAndFrom(t *testing.T) {
	refused := errs.New(errs.ModelNotFound, "no %q", "m").WithModel("m")
	tests := []struct {
		name string
		err  error
		want errs.Reason
		msg  string
	}{
		{"typed", refused, errs.ModelNotFound, `no "m"`},
		{"wrapped", fmt.Errorf("route: %w", refused), errs.ModelNotFound, `no "m"`},
		{"foreign text stays inside", io.ErrUnexpectedEOF, errs.Bug, "internal error"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := errs.Of(tt.err); got != tt.want {
				t.Errorf("Of = %q, want %q", got, tt.want)
			}
			if got := errs.From(tt.err).Msg; got != tt.msg {
				t.Errorf("From().Msg = %q, want %q", got, tt.msg)
			}
			if !errors.Is(errs.From(tt.err), tt.err) && tt.want == errs.Bug {
				t.Error("From lost the cause")
			}
		})
	}
	if errs.Of(nil) != "" || errs.From(nil) != nil {
		t.Error("nil error has a reason")
	}
	if !errors.Is(refused, errs.New(errs.ModelNotFound, "")) || errors.Is(refused, errs.New(errs.Bug, "")) {
		t.Error("errors.Is does not compare reasons")
	}
}

func TestBugsAreToldFromErrorsWithoutAReason(t *testing.T) {
	bug := errs.New(errs.Bug, "the count is off")
	tests := []struct {
		name string
		err  error
		want bool
	}{
		{"nil", nil, false},
		{"foreign", io.EOF, false},
		{"foreign, wrapped", fmt.Errorf("read: %w", io.EOF), false},
		{"refusal", errs.New(errs.QueueFull, "full"), true},
		{"bug that was found", bug, true},
		{"bug, wrapped", fmt.Errorf("close: %w", bug), true},
		{"joined with a foreign one", errors.Join(io.EOF, bug), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := errs.Classified(tt.err); got != tt.want {
				t.Errorf("Classified = %t, want %t", got, tt.want)
			}
		})
	}
}

func TestCallersSeeNoTextOfABug(t *testing.T) {
	inner := errors.New("dial 10.0.0.7: refused")
	if errs.Visible(nil) != nil {
		t.Error("nil is an error")
	}
	told := errs.New(errs.QueueFull, "full").WithModel("m")
	if got := errs.Visible(told); got != told {
		t.Errorf("a refusal became %v", got)
	}
	for _, err := range []error{inner, errs.Wrap(errs.Bug, inner, "10.0.0.7 failed").WithModel("m"), errs.Wrap("of_tomorrow", inner, "10.0.0.7 failed")} {
		if got := errs.Visible(err); got.Reason != errs.Bug || got.Msg != "internal error" || !errors.Is(got, inner) {
			t.Errorf("%v became %v: %q", err, got.Reason, got.Msg)
		}
	}
}

func TestErrorText(t *testing.T) {
	cause := errors.New("no such file")
	tests := []struct {
		err  *errs.Error
		want string
	}{
		{&errs.Error{Reason: errs.LoadFailed, Op: "load model", Msg: "cannot read", Err: cause}, "load model: cannot read: no such file"},
		{errs.Wrap(errs.LoadFailed, cause, "cannot read: %v", cause), "cannot read: no such file"},
		{&errs.Error{Reason: errs.Canceled}, "cancelled"},
	}
	for _, tt := range tests {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("Error() = %q, want %q", got, tt.want)
		}
	}
}

// TestGeneratedFilesAreInStep regenerates into a copy of the package's place
// in the tree and compares.
func TestGeneratedFilesAreInStep(t *testing.T) {
	root := t.TempDir()
	pkg := filepath.Join(root, "libs", "errs")
	for _, dir := range []string{pkg, filepath.Join(root, "docs", "reference")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	table, err := os.ReadFile("reasons.tsv")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(pkg, "reasons.tsv"), table, 0o644); err != nil {
		t.Fatal(err)
	}
	gen := filepath.Join(root, "gen")
	if out, err := exec.Command("go", "build", "-o", gen, "./internal/gen").CombinedOutput(); err != nil {
		t.Fatalf("build generator: %v\n%s", err, out)
	}
	cmd := exec.Command(gen)
	cmd.Dir = pkg
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("generate: %v\n%s", err, out)
	}
	for _, path := range []string{"libs/errs/reasons_gen.go", "docs/reference/errors.md"} {
		want, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("..", "..", path))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is out of step with reasons.tsv: run make generate (%v)", path, err)
		}
	}
}
