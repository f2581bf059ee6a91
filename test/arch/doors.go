package arch

import (
	"go/ast"
	"slices"
	"strings"
)

// doors lists the files that may make a server, by how they make it. Tests walk what each of them
// serves: see the tests that SECURITY.md names for who may call what.
func doors() map[string][]string {
	return map[string][]string{
		"grpc.NewServer":   {"services/gateway/internal/rpc/server.go"},
		"http.Server":      {"services/gateway/gateway.go", "libs/process/admin.go"},
		"http.NewServeMux": {"libs/process/admin.go", "libs/obs/metrics.go"},
		"http.Handle":      nil,
		"http.HandleFunc":  nil,
	}
}

// checkDoors finds servers beside those whose calls are authorized in one place. The servers for other
// services take the options by which each call is held against the caller's certificate.
func checkDoors(p *pkg) []Violation {
	if !matchAny([]string{"libs/...", "services/...", "cmd/..."}, p.dir) || matchAny([]string{"libs/testkit/..."}, p.dir) {
		return nil
	}
	var found []Violation
	allowed := doors()
	for _, f := range p.files {
		if f.test || f.generated {
			continue
		}
		ast.Inspect(f.syntax, func(node ast.Node) bool {
			made := ""
			switch n := node.(type) {
			case *ast.CallExpr:
				if made = selected(n.Fun); made == "grpc.NewServer" && authorizes(n) {
					return true
				}
			case *ast.CompositeLit:
				made = selected(n.Type)
			}
			if files, door := allowed[made]; door && !slices.Contains(files, f.path) {
				found = append(found, Violation{
					Where: f.place(node), Rule: "no door beside the lock", What: "makes a server by " + made,
					Reason: "who may call what is decided and tested in one place for each port",
				})
			}
			return true
		})
	}
	return found
}

// authorizes reports whether a gRPC server is made by link.ServerOptions alone.
func authorizes(n *ast.CallExpr) bool {
	if len(n.Args) != 1 || !n.Ellipsis.IsValid() {
		return false
	}
	options, call := n.Args[0].(*ast.CallExpr)
	return call && selected(options.Fun) == "link.ServerOptions"
}

// selected is a name of a package, such as grpc.NewServer; empty for anything else.
func selected(e ast.Expr) string {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	of, ok := s.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return strings.Join([]string{of.Name, s.Sel.Name}, ".")
}
