// Command audit joins the logs of clients and workers and tells what must never
// have been:
//
//	audit -idempotent m1,m2 -clients requests.log executions-1 executions-2
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/nereid-serving/nereid/test/audit"
)

func main() {
	clients := flag.String("clients", "", "logs of requests, separated by commas")
	idempotent := flag.String("idempotent", "", "models that may run a request twice, separated by commas")
	flag.Parse()
	report, err := run(strings.Split(*clients, ","), flag.Args(), strings.Split(*idempotent, ","))
	if err != nil {
		fmt.Fprintln(os.Stderr, "audit:", err)
		os.Exit(2)
	}
	fmt.Fprint(os.Stdout, report)
	if len(report.Violations) > 0 {
		os.Exit(1)
	}
}

func run(clients, workers, idempotent []string) (audit.Report, error) {
	a := audit.Auditor{Idempotent: idempotent}
	for _, path := range clients {
		if err := feed(path, a.Clients); err != nil {
			return audit.Report{}, err
		}
	}
	for _, path := range workers {
		if err := feed(path, func(r io.Reader) error { return a.Worker(path, r) }); err != nil {
			return audit.Report{}, err
		}
	}
	return a.Report(), nil
}

func feed(path string, take func(io.Reader) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := take(f); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
