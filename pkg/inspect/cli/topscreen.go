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
	screen := &topScreen{command: c, options: o, width: 80, height: 24, inside: o.service, watch: newWatch{command: c, interval: o.interval}}
	screen.follow = func() { screen.watch.follow(ctx, screen.inside) }
	defer screen.watch.close()
	screen.follow()
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

	watch  newWatch
	follow func() // has the watch look at what is inside

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
		s.follow()
		return s, s.wait()
	case tea.KeyPressMsg:
		if s.typing && msg.String() != "ctrl+c" {
			s.typed(msg)
			return s, nil
		}
		command := s.key(msg.String())
		s.follow()
		return s, command
	}
	return s, nil
}

// show makes a sample the one that is seen, unless the view is paused.
func (s *topScreen) show(sample *inspect.Sample) {
	if !s.paused {
		s.top = s.command.topSince(sample, s.last)
		s.watch.add(s.top)
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

// room is how many lines of the table the screen has, beside the sums, the heading and the keys.
func (s *topScreen) room() int {
	return max(1, s.height-5-strings.Count(agentDown(s.top), "\n"))
}

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
	for i := range lines {
		lines[i] = s.cut(lines[i])
	}
	body := s.body()
	lines = append(lines, bold+s.cut(body.heading)+plain)
	for i, row := range body.rows {
		row = s.cut(row)
		if i == body.cursor {
			row = reverse + row + strings.Repeat(" ", max(0, s.width-columns(row))) + plain
		}
		lines = append(lines, row)
	}
	for len(lines) < s.height-1 {
		lines = append(lines, "")
	}
	view := tea.NewView(strings.Join(append(lines, s.foot(body.all)), "\n"))
	view.AltScreen = true
	return view
}

// The styles: reverse video is seen in the dark and in the light.
const (
	bold    = "\x1b[1m"
	reverse = "\x1b[7m"
	plain   = "\x1b[0m"
)

// screenBody is what is seen of a table.
type screenBody struct {
	heading string
	rows    []string
	cursor  int // one of rows; -1: none
	all     int // how many rows there are
}

// body returns what is seen of the Services, or of the backends of one.
func (s *topScreen) body() screenBody {
	if s.inside == (model.Name{}) {
		return s.serviceBody()
	}
	at := inspect.IndexOfService(s.top.Services, s.inside)
	if at < 0 {
		return screenBody{heading: fmt.Sprintf("Service %s is not served", s.inside), cursor: -1}
	}
	lines := textLines(topService(s.top, at, s.width))
	from, to := s.seen(len(lines), -1)
	return screenBody{fmt.Sprintf("Service %s", s.inside), lines[from:to], -1, len(lines)}
}

// serviceBody returns the Services that are seen. Those that are not have no part in the columns.
func (s *topScreen) serviceBody() screenBody {
	services := s.services()
	cursor := -1
	if len(services) > 0 {
		cursor = s.cursor(services)
		s.chosen = services[cursor].FullName()
	}
	from, to := s.seen(len(services), cursor)
	t := topServices(services[from:to])
	fitTop(t, s.width)
	lines := textLines(t.String())
	return screenBody{lines[0], lines[1:], cursor - from, len(services)}
}

// seen returns which of some rows are seen: that of the cursor is; -1: there is none.
func (s *topScreen) seen(rows, cursor int) (from, to int) {
	if cursor >= 0 {
		s.first = min(max(s.first, cursor-s.room()+1), cursor)
	}
	s.first = max(0, min(s.first, rows-s.room()))
	return s.first, min(rows, s.first+s.room())
}

func textLines(text string) []string { return strings.Split(strings.TrimRight(text, "\n"), "\n") }

// cut takes off what the terminal has no columns for: a line that wraps would move all others.
func (s *topScreen) cut(line string) string {
	shown := []rune(escape(line))
	return string(shown[:min(len(shown), max(0, s.width))])
}

// foot says what can be done, or what is wrong: how to end always, the other keys where there is room.
func (s *topScreen) foot(rows int) string {
	text, keys := s.footParts(rows)
	const apart, quit = "  ", "q: quit"
	if s.typing {
		return s.cut(text)
	}
	for _, key := range keys {
		if columns(text)+columns(apart+key+apart+quit) > s.width {
			break
		}
		text += apart + key
	}
	text = escape(text)
	if over := columns(text+apart+quit) - s.width; over > 0 {
		text = string([]rune(text)[:max(0, columns(text)-over)])
	}
	return s.cut(text + apart + quit)
}

// footParts returns what the foot says first, and the keys, those needed most first.
func (s *topScreen) footParts(rows int) (text string, keys []string) {
	var parts []string
	if s.paused {
		parts = append(parts, "PAUSED")
	}
	if s.err != nil {
		parts = append(parts, "NOT READ: "+strings.ReplaceAll(s.err.Error(), "\n", "; "))
	}
	keys = []string{"c r f n: sort", "/: filter", "enter: backends", "space: pause"}
	if s.top.Sum().Traffic != nil {
		keys[0] = "crfpbn: sort"
	}
	switch {
	case s.typing:
		parts = append(parts, "/"+s.filter+"_")
	case s.inside != (model.Name{}):
		parts, keys = append(parts, s.inside.String()), []string{"esc: all Services", "space: pause"}
	default:
		if s.filter != "" {
			parts = append(parts, fmt.Sprintf("%s with %q", inspect.Amount(rows, "service"), s.filter))
		}
		parts = append(parts, "by "+s.options.sort.String())
	}
	return strings.Join(parts, "  "), keys
}
