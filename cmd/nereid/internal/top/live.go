package top

import (
	"context"
	"io"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/nereid-serving/nereid/libs/lifecycle"
)

// Live shows what happens in a terminal, anew at each interval, until q or Ctrl-C.
func Live(ctx context.Context, in io.Reader, out io.Writer, servers []string, every time.Duration) error {
	first, err := Read(ctx, servers)
	if err != nil {
		return err
	}
	l := &live{ctx: ctx, servers: servers, every: every, last: first, text: "reading …\n"}
	_, err = tea.NewProgram(l, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out)).Run()
	return lifecycle.UnlessStopped(ctx, err)
}

// live is the program's state: what was read last, and what is shown of it.
type live struct {
	ctx     context.Context //nolint:containedctx // of the program
	servers []string
	every   time.Duration
	last    *Sample
	text    string
}

// read is what was read, or why it could not be.
type read struct {
	sample *Sample
	err    error
}

// Init implements tea.Model.
func (l *live) Init() tea.Cmd { return l.again() }

// again reads after the interval.
func (l *live) again() tea.Cmd {
	return tea.Tick(l.every, func(time.Time) tea.Msg {
		s, err := Read(l.ctx, l.servers)
		return read{s, err}
	})
}

// Update implements tea.Model.
func (l *live) Update(m tea.Msg) (tea.Model, tea.Cmd) {
	switch m := m.(type) {
	case tea.KeyPressMsg:
		if k := m.String(); k == "q" || k == "ctrl+c" || k == "esc" {
			return l, tea.Quit
		}
	case read:
		if m.err != nil {
			l.text = m.err.Error() + "\n"
			return l, l.again()
		}
		var b strings.Builder
		if err := Print(&b, l.last, m.sample); err != nil {
			l.text = err.Error()
		} else {
			l.text = b.String()
		}
		l.last = m.sample
		return l, l.again()
	}
	return l, nil
}

// View implements tea.Model.
func (l *live) View() tea.View {
	v := tea.NewView(strings.Join(l.servers, " ") + "  " + time.Now().Format(time.TimeOnly) + "  (q ends)\n\n" + l.text)
	v.AltScreen = true
	return v
}
