// Command gen writes errs' constants and table, and the reference page, from
// reasons.tsv. It is run by go generate in the errs package.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"go/format"
	"log"
	"os"
	"strings"
)

type reason struct{ name, http, grpc, retry, summary, fix string }

// codes are the numbers of google.golang.org/grpc/codes.
func codes() map[string]int {
	names := strings.Fields("OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS " + //nolint:misspell // gRPC spells its code so
		"PERMISSION_DENIED RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL " +
		"UNAVAILABLE DATA_LOSS UNAUTHENTICATED")
	m := make(map[string]int, len(names))
	for i, n := range names {
		m[n] = i
	}
	return m
}

func main() {
	log.SetFlags(0)
	rows, err := read("reasons.tsv")
	if err != nil {
		log.Fatal(err)
	}
	src, err := format.Source(goFile(rows))
	if err != nil {
		log.Fatal(err)
	}
	for path, data := range map[string][]byte{"reasons_gen.go": src, "../../docs/reference/errors.md": page(rows)} {
		if err := os.WriteFile(path, data, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

func read(path string) ([]reason, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var rows []reason
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		text := lines.Text()
		if text == "" || text[0] == '#' {
			continue
		}
		f := strings.Split(text, "\t")
		if len(f) != 6 {
			return nil, fmt.Errorf("%s:%d: %d fields, want 6", path, n, len(f))
		}
		if _, ok := codes()[f[2]]; !ok {
			return nil, fmt.Errorf("%s:%d: unknown gRPC code %q", path, n, f[2])
		}
		rows = append(rows, reason{f[0], f[1], f[2], f[3], f[4], f[5]})
	}
	return rows, lines.Err()
}

func goFile(rows []reason) []byte {
	var b bytes.Buffer
	b.WriteString("// Code generated from reasons.tsv by internal/gen. DO NOT EDIT.\n\npackage errs\n\n// The reasons, in the order in which they were added.\nconst (\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "\t// %s: %s\n\t%s Reason = %q\n", camel(r.name), r.summary, camel(r.name), r.name)
	}
	b.WriteString(")\n\ntype row struct {\n\thttp uint16\n\tgrpc uint8\n\tretry bool\n\tsummary string\n}\n\n")
	b.WriteString("func lookup(r Reason) int {\n\tswitch r {\n")
	for i, r := range rows {
		fmt.Fprintf(&b, "\tcase %s:\n\t\treturn %d\n", camel(r.name), i)
	}
	b.WriteString("\t}\n\treturn -1\n}\n\nfunc rowAt(i int) row {\n\tswitch i {\n")
	for i, r := range rows[1:] {
		fmt.Fprintf(&b, "\tcase %d:\n\t\treturn row{%s, %d, %t, %q}\n", i+1, r.http, codes()[r.grpc], r.retry == "yes", r.summary)
	}
	fmt.Fprintf(&b, "\tdefault:\n\t\treturn row{%s, %d, %t, %q}\n\t}\n}\n", rows[0].http, codes()[rows[0].grpc], rows[0].retry == "yes", rows[0].summary)
	b.WriteString("\n// Reasons lists every reason in the order of the table.\nfunc Reasons() []Reason {\n\treturn []Reason{\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "\t\t%s,\n", camel(r.name))
	}
	b.WriteString("\t}\n}\n")
	return b.Bytes()
}

func camel(s string) string {
	var b strings.Builder
	for _, w := range strings.Split(s, "_") {
		switch w {
		case "json", "api":
			b.WriteString(strings.ToUpper(w))
		case "cancelled": //nolint:misspell // reasons.tsv keeps the word, the identifier is spelled as in Go
			b.WriteString("Canceled")
		default:
			b.WriteString(strings.ToUpper(w[:1]) + w[1:])
		}
	}
	return b.String()
}

func page(rows []reason) []byte {
	var b bytes.Buffer
	b.WriteString("<!-- Generated from libs/errs/reasons.tsv. Do not edit. -->\n# Errors\n\n" +
		"Every refusal and failure has one `reason`. It is in the HTTP header `Nereid-Reason`, in the gRPC status details (`ErrorInfo`), in\n" +
		"metric labels and in log lines. The words are stable: new ones are added, old ones are never changed.\n\n" +
		"The body of an HTTP error is Triton's, `{\"error\":\"...\"}`. `Nereid-Request-Id` names an inference as the server's log does.\n\n" +
		"| reason | HTTP | gRPC | retry | meaning | what to do |\n|---|---|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", r.name, r.http, r.grpc, r.retry, r.summary, r.fix)
	}
	return b.Bytes()
}
