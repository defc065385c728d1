package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/model"
)

// topScreen shows the live view until the user ends it.
func (c *command) topScreen(ctx context.Context, out *os.File, o topOptions) error {
	first, err := read(c, (*inspect.Datapath).Sample) // its errors belong to the shell
	if err != nil {
		return err
	}
	screen := &topScreen{command: c, options: o, width: 80, height: 24, inside: o.service}
	screen.show(first)
	_, err = tea.NewProgram(screen, tea.WithContext(ctx), tea.WithInput(os.Stdin), tea.WithOutput(out)).Run()
	if errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}

// topScreen is the state of the live view.
type topScreen struct {
	command *command
	options topOptions

	last *inspect.Sample
	top  *inspect.Top
	err  error // of the last reading

	width, height int
	paused        bool
	filter        string
	typing        bool       // the filter
	chosen        model.Name // the line of the cursor
	inside        model.Name // the Service whose backends are shown; the zero value: all Services
	first         int        // line of the table that the screen begins with
}

// The messages of the live view.
type (
	topTick   struct{}
	topResult struct {
		sample *inspect.Sample
		err    error
	}
)

// Init starts the first interval.
func (s *topScreen) Init() tea.Cmd { return s.wait() }

func (s *topScreen) wait() tea.Cmd {
	return tea.Tick(s.options.interval, func(time.Time) tea.Msg { return topTick{} })
}

// Update follows a key, the size of the terminal or a new reading.
func (s *topScreen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = msg.Width, msg.Height
	case topTick:
		return s, func() tea.Msg {
			sample, err := read(s.command, (*inspect.Datapath).Sample)
			return topResult{sample, err}
		}
	case topResult:
		if s.err = msg.err; s.err == nil {
			s.show(msg.sample)
		}
		return s, s.wait()
	case tea.KeyPressMsg:
		if s.typing && msg.String() != "ctrl+c" {
			s.typed(msg)
			return s, nil
		}
		return s, s.key(msg.String())
	}
	return s, nil
}

// show makes a sample the one that is seen, unless the view is paused.
func (s *topScreen) show(sample *inspect.Sample) {
	if !s.paused {
		s.top = s.command.topSince(sample, s.last)
	}
	s.last = sample
}

// typed changes the filter.
func (s *topScreen) typed(key tea.KeyPressMsg) {
	switch name := key.String(); name {
	case "enter":
		s.typing = false
	case "esc":
		s.typing, s.filter = false, ""
	case "backspace":
		s.filter = s.filter[:max(0, len(s.filter)-1)]
	default:
		for _, r := range key.Text {
			if r > ' ' && r < 0x7f { // names have no others
				s.filter += string(r)
			}
		}
	}
}

// key follows a key outside of the filter.
func (s *topScreen) key(name string) tea.Cmd {
	switch name {
	case "q", "ctrl+c":
		return tea.Quit
	case "c":
		s.options.sort.TopOrder = inspect.ByConnections
	case "r":
		s.options.sort.TopOrder = inspect.ByRefused
	case "f":
		s.options.sort.TopOrder = inspect.ByFlows
	case "p":
		s.options.sort.TopOrder = inspect.ByPackets
	case "b":
		s.options.sort.TopOrder = inspect.ByBytes
	case "n":
		s.options.sort.TopOrder = inspect.ByName
	case "/":
		s.typing, s.inside = true, model.Name{}
	case "space":
		s.paused = !s.paused
	case "enter":
		if s.inside == (model.Name{}) {
			s.inside, s.first = s.chosen, 0
		}
	case "esc":
		if s.inside != (model.Name{}) {
			s.inside, s.first = model.Name{}, 0
		} else {
			s.filter = ""
		}
	case "up", "k":
		s.move(-1)
	case "down", "j":
		s.move(1)
	case "pgup":
		s.move(-s.room())
	case "pgdown":
		s.move(s.room())
	case "home":
		s.move(-1 << 30)
	case "end":
		s.move(1 << 30)
	}
	return nil
}

// room is how many lines of the table the screen has.
func (s *topScreen) room() int { return max(1, s.height-5) }

// services returns those that the filter lets pass, in order.
func (s *topScreen) services() []inspect.TopService {
	return s.top.Matching(s.filter, s.options.sort.TopOrder)
}

// move moves the cursor by lines, or what is seen of the backends.
func (s *topScreen) move(lines int) {
	if s.inside != (model.Name{}) {
		s.first = max(0, s.first+lines)
		return
	}
	services := s.services()
	if len(services) == 0 {
		return
	}
	at := min(max(s.cursor(services)+lines, 0), len(services)-1)
	s.chosen = services[at].FullName()
}

// cursor returns the line of the chosen Service; the first when it is not there.
func (s *topScreen) cursor(services []inspect.TopService) int {
	return max(0, inspect.IndexOfService(services, s.chosen))
}

// View draws the screen.
func (s *topScreen) View() tea.View {
	lines := textLines(agentDown(s.top) + topSummary(s.top))
	body, cursor := s.body()
	rows := body[1:]
	if cursor >= 0 {
		s.first = min(max(s.first, cursor-s.room()+1), cursor)
	}
	s.first = max(0, min(s.first, len(rows)-s.room()))
	lines = append(lines, bold+s.cut(body[0])+plain)
	for i, row := range rows[s.first:min(len(rows), s.first+s.room())] {
		row = s.cut(row)
		if s.first+i == cursor {
			row = reverse + row + strings.Repeat(" ", max(0, s.width-len(row))) + plain
		}
		lines = append(lines, row)
	}
	for len(lines) < s.height-1 {
		lines = append(lines, "")
	}
	for i := range 2 {
		lines[i] = s.cut(lines[i])
	}
	view := tea.NewView(strings.Join(append(lines, s.cut(s.foot(len(rows)))), "\n"))
	view.AltScreen = true
	return view
}

// The styles: reverse video is seen in the dark and in the light.
const (
	bold    = "\x1b[1m"
	reverse = "\x1b[7m"
	plain   = "\x1b[0m"
)

// body returns the lines of the table with its heading, and the one of the cursor; -1: none.
func (s *topScreen) body() (lines []string, cursor int) {
	if s.inside == (model.Name{}) {
		services := s.services()
		at := s.cursor(services)
		if len(services) > 0 {
			s.chosen = services[at].FullName()
		} else {
			at = -1
		}
		return textLines(topServices(services).String()), at
	}
	at := inspect.IndexOfService(s.top.Services, s.inside)
	if at < 0 {
		return []string{fmt.Sprintf("Service %s is not served", s.inside)}, -1
	}
	return textLines(fmt.Sprintf("Service %s\n%s", s.inside, topBackends(&s.top.Services[at]))), -1
}

func textLines(text string) []string { return strings.Split(strings.TrimRight(text, "\n"), "\n") }

// cut takes off what the terminal has no columns for: a line that wraps would move all others.
func (s *topScreen) cut(line string) string { return line[:min(len(line), max(0, s.width))] }

// foot says what can be done, or what is wrong.
func (s *topScreen) foot(rows int) string {
	var parts []string
	if s.paused {
		parts = append(parts, "PAUSED")
	}
	if s.err != nil {
		parts = append(parts, "NOT READ: "+strings.ReplaceAll(s.err.Error(), "\n", "; "))
	}
	switch {
	case s.typing:
		return strings.Join(append(parts, "/"+s.filter+"_"), "  ")
	case s.inside != (model.Name{}):
		return strings.Join(append(parts, s.inside.String(), "esc: all Services", "space: pause", "q: quit"), "  ")
	case s.filter != "":
		parts = append(parts, fmt.Sprintf("%s with %q", inspect.Amount(rows, "service"), s.filter))
	}
	keys := "c r f n: sort"
	if s.top.Sum().Traffic != nil {
		keys = "crfpbn: sort"
	}
	return strings.Join(append(parts, "by "+s.options.sort.String(), keys, "/: filter", "enter: backends", "space: pause", "q: quit"), "  ")
}
