// Package overview prints the state of a cluster for people.
package overview

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Unwell is an error unless all is well.
func Unwell(c *nereidv1.ClusterStatus) error {
	switch n := len(c.GetProblems()); n {
	case 0:
		return nil
	case 1:
		return errors.New("not all is well: " + c.GetProblems()[0])
	default:
		return fmt.Errorf("not all is well: %s (and %d more)", c.GetProblems()[0], n-1)
	}
}

// Print shows a cluster as tables, those without rows left out.
func Print(w io.Writer, c *nereidv1.ClusterStatus) error {
	tables := []table{services(c), workers(c), models(c), queues(c)}
	for _, t := range tables {
		if len(t.rows) == 0 {
			continue
		}
		if err := t.print(w); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	if len(c.GetProblems()) == 0 {
		_, err := fmt.Fprintln(w, "All is well.")
		return err
	}
	fmt.Fprintln(w, "Not all is well:")
	for _, p := range c.GetProblems() {
		if _, err := fmt.Fprintf(w, "- %s\n", p); err != nil {
			return err
		}
	}
	return nil
}

// table is rows of cells under a head.
type table struct {
	head []string
	rows [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) print(w io.Writer) error {
	var text strings.Builder
	columns := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	for _, row := range append([][]string{t.head}, t.rows...) {
		fmt.Fprintln(columns, strings.Join(row, "\t"))
	}
	if err := columns.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(text.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

func services(c *nereidv1.ClusterStatus) table {
	t := table{head: []string{"SERVICE", "ID", "STATE", "RELEASE", "ADDRESS", "EPOCH", "LOAD", "LEADS"}}
	for _, s := range c.GetServices() {
		t.add(s.GetRole(), s.GetId(), state(s.GetState()), cmp.Or(s.GetRelease(), "-"), cmp.Or(s.GetAddress(), "-"),
			fmt.Sprint(s.GetEpoch()), load(s), leads(c, s))
	}
	return t
}

// load is what waits and runs in the pool of a scheduler that holds one, as it
// last reported: its queues are known only while it responds.
func load(s *nereidv1.ServiceStatus) string {
	if s.GetWaiting() == 0 && s.GetRunning() == 0 {
		return "-"
	}
	return fmt.Sprintf("%d wait, %d run", s.GetWaiting(), s.GetRunning())
}

// leads returns which roles a service holds, or that it could hold one.
func leads(c *nereidv1.ClusterStatus, s *nereidv1.ServiceStatus) string {
	var held []string
	for _, l := range c.GetLeaders() {
		if ofRole(l.GetRole(), s.GetRole()) && l.GetHolder() == s.GetId() {
			held = append(held, fmt.Sprintf("%s since %d", l.GetRole(), l.GetEpoch()))
		}
	}
	switch {
	case len(held) > 0:
		return strings.Join(held, ", ")
	case s.GetRole() == "registry" || s.GetRole() == "scheduler":
		return "(standby)"
	}
	return ""
}

// ofRole reports whether a service of a kind may hold a role.
func ofRole(role, service string) bool {
	return role == service || service == "scheduler" && strings.HasPrefix(role, "pool.")
}

func workers(c *nereidv1.ClusterStatus) table {
	t := table{head: []string{"WORKER", "POOL", "DEVICE", "MEMORY", "INSTANCES", "ASSIGNMENT", "RESTARTS"}}
	for _, w := range c.GetWorkers() {
		assignment := "applied"
		if w.GetBehind() {
			assignment = "on its way"
		}
		t.add(w.GetId(), cmp.Or(w.GetLabels()[infer.PoolLabel], infer.DefaultPool), device(w.GetDevice()), memory(w), of(w.GetReady(), w.GetInstances()), assignment, restarts(w))
	}
	return t
}

// restarts returns how often a worker was started again, and how the one before it
// ended.
func restarts(w *nereidv1.WorkerStatus) string {
	switch {
	case w.GetRestarts() == 0:
		return "-"
	case w.GetLastExit() == "":
		return fmt.Sprint(w.GetRestarts())
	}
	return fmt.Sprintf("%d (%s)", w.GetRestarts(), w.GetLastExit())
}

func device(d *nereidv1.WorkerDevice) string {
	kind := strings.ToLower(strings.TrimPrefix(d.GetKind().String(), "DEVICE_KIND_"))
	if d.GetKind() == nereidv1.DeviceKind_DEVICE_KIND_GPU {
		kind = fmt.Sprintf("gpu:%d", d.GetNumber())
	}
	if d.GetName() != "" {
		kind += " " + d.GetName()
	}
	return kind
}

// memory is what is used of what may be.
func memory(w *nereidv1.WorkerStatus) string {
	most := cmp.Or(w.GetMemoryBudgetBytes(), w.GetDevice().GetMemoryBytes())
	if most == 0 {
		return bytes(w.GetMemoryUsedBytes())
	}
	return bytes(w.GetMemoryUsedBytes()) + " of " + bytes(most)
}

func bytes(n uint64) string {
	value, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for len(units) > 1 && value >= 1024 {
		value, units = value/1024, units[1:]
	}
	if units[0] == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", value, units[0])
}

func of(ready, all uint32) string { return fmt.Sprintf("%d of %d ready", ready, all) }

func models(c *nereidv1.ClusterStatus) table {
	t := table{head: []string{"MODEL", "VERSION", "SHOULD", "WORKER", "STATE", "INSTANCES", "CAUSE"}}
	for _, m := range c.GetModels() {
		name := m.GetName()
		if m.GetNamespace() != "" {
			name += " of " + m.GetNamespace()
		}
		if cause := cmp.Or(m.GetProblem(), m.GetFailure()); cause != "" {
			t.add(name, "", "", "", "", "", cause)
		}
		for _, v := range m.GetVersions() {
			addVersion(&t, name, v)
		}
		if m.GetProblem() == "" && len(m.GetVersions()) == 0 {
			t.add(name, "", "", "", "", "", "no version is in the repository")
		}
	}
	return t
}

func addVersion(t *table, name string, v *nereidv1.VersionStatus) {
	version := fmt.Sprintf("%d (generation %d)", v.GetVersion(), v.GetGeneration())
	switch e := v.GetEnsemble(); {
	case e != nil:
		t.add(name, version, should(v), "(ensemble)", state(e.GetState()), "-", cmp.Or(e.GetCause(), v.GetProblem()))
	case len(v.GetWorkers()) == 0:
		t.add(name, version, should(v), "-", "-", "-", v.GetProblem())
	}
	for _, p := range v.GetWorkers() {
		instances := of(p.GetReady(), max(p.GetReady(), p.GetAssigned()))
		t.add(name, version, should(v), p.GetWorkerId(), state(p.GetState()), instances, cmp.Or(p.GetCause(), v.GetProblem()))
	}
}

// should is what is to become of a version.
func should(v *nereidv1.VersionStatus) string {
	switch {
	case v.GetPrevious():
		return "serve until the newer one is ready"
	case v.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_SERVE:
		return "serve"
	}
	return "unload"
}

func state(s nereidv1.State) string {
	if s == nereidv1.State_STATE_UNSPECIFIED {
		return "-"
	}
	return strings.ToLower(strings.TrimPrefix(s.String(), "STATE_"))
}

// queues are those of the pools.
func queues(c *nereidv1.ClusterStatus) table {
	t := table{head: []string{"QUEUE", "VERSION", "POOL", "WAITING", "OLDEST", "RUNNING"}}
	for _, q := range c.GetQueues() {
		oldest := "-"
		if q.GetOldestNs() > 0 {
			oldest = time.Duration(q.GetOldestNs()).Round(time.Millisecond).String()
		}
		m := q.GetModel()
		t.add(m.GetName(), fmt.Sprintf("%d (generation %d)", m.GetVersion(), m.GetGeneration()), q.GetPool(),
			fmt.Sprint(q.GetWaiting()), oldest, fmt.Sprint(q.GetRunning()))
	}
	return t
}
