// Package arch checks that the code keeps to its layout: which package may
// import which, where cgo and unsafe may stand, how large a file may grow,
// which identifiers have a better word, and that every module stands on its
// own.
//
// It reads sources, not builds, so files under every build tag count. Each
// rule carries the reason that its violation prints. The rules are data; the
// test runs them over the repository, and over fixtures that break each one.
package arch

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// Prefix is the module path of the repository's root; a package's path inside
// the repository follows it.
const Prefix = "github.com/nereid-serving/nereid"

// Violation is one broken rule in one place.
type Violation struct {
	// Where is a path in the repository, with a line where there is one.
	Where string
	// Rule is the rule's name, as in the rules' tables.
	Rule string
	// What says what was found there.
	What string
	// Reason says why the rule is there.
	Reason string
}

// String is the line a developer reads.
func (v Violation) String() string {
	return fmt.Sprintf("%s: %s (%s: %s)", v.Where, v.What, v.Rule, v.Reason)
}

// Check returns every violation in the repository whose root is given, sorted
// by place. An error means that the tree could not be read or parsed.
func Check(root fs.FS) ([]Violation, error) {
	tree, err := load(root)
	if err != nil {
		return nil, err
	}
	var found []Violation
	rules := bans()
	for _, p := range tree.packages {
		found = append(found, checkImports(p, rules)...)
		found = append(found, checkPlace(p)...)
		found = append(found, checkPurity(p)...)
		found = append(found, checkPackage(p)...)
		found = append(found, checkDoors(p)...)
	}
	found = append(found, checkModules(tree)...)
	found = append(found, checkTexts(tree)...)
	found = append(found, checkMap(tree)...)
	found = append(found, checkRefused(tree)...)
	found = append(found, checkSecurity(tree)...)
	slices.SortFunc(found, func(a, b Violation) int { return strings.Compare(a.String(), b.String()) })
	return found, nil
}

// match reports whether a slash-separated path fits a pattern, in which *
// stands for one segment, for a part of one as in *_test, and a last ... for
// any number of segments, also none.
func match(pattern, path string) bool {
	want, have := strings.Split(pattern, "/"), strings.Split(path, "/")
	for i, segment := range want {
		if segment == "..." {
			return true
		}
		if i >= len(have) || !matchSegment(segment, have[i]) {
			return false
		}
	}
	return len(want) == len(have)
}

func matchSegment(pattern, segment string) bool {
	before, after, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == segment
	}
	return len(segment) >= len(before)+len(after) &&
		strings.HasPrefix(segment, before) && strings.HasSuffix(segment, after)
}

func matchAny(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return match(pattern, path) })
}
