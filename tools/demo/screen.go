package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// The looks of a piece of text, as ANSI SGR parameters.
const (
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
	amber = "33"
	cyan  = "36"
)

// barWidth is the length in characters of a bar that stands for everything.
const barWidth = 60

// screen is what the viewer reads.
type screen struct {
	out     io.Writer
	colours bool
	scenes  int
	claims  int
	broken  int // claims that did not hold
}

// newScreen writes to out, in colour only on a terminal and unless NO_COLOR is set
// (https://no-color.org).
func newScreen(out *os.File) *screen {
	return &screen{out: out, colours: term.IsTerminal(int(out.Fd())) && os.Getenv("NO_COLOR") == ""}
}

func (s *screen) paint(look, text string) string {
	if !s.colours {
		return text
	}
	return "\x1b[" + look + "m" + text + "\x1b[0m"
}

// scene begins a numbered part.
func (s *screen) scene(title string) {
	s.scenes++
	fmt.Fprintf(s.out, "\n%s\n\n", s.paint(bold, fmt.Sprintf("%d  %s", s.scenes, title)))
}

// say prints a line of explanation.
func (s *screen) say(format string, args ...any) {
	fmt.Fprintf(s.out, "   %s\n", s.paint(dim, fmt.Sprintf(format, args...)))
}

// prompt prints a command line and where it runs.
func (s *screen) prompt(where, line string) {
	fmt.Fprintf(s.out, "   %s %s\n", s.paint(cyan, where+" $"), s.paint(bold, line))
}

// text prints the output of a command.
func (s *screen) text(output string) {
	for line := range strings.Lines(output) {
		fmt.Fprintln(s.out, strings.TrimRight("     "+line, " \n"))
	}
}

// bars prints a bar for each name, as long as its share of all counts.
func (s *screen) bars(names []string, counts map[string]int) {
	total := 0
	for _, n := range counts {
		total += n
	}
	for _, name := range names {
		length := 0
		if total > 0 {
			length = counts[name] * barWidth / total
		}
		fmt.Fprintf(s.out, "     %-8s %5d  %s\n", name, counts[name], s.paint(amber, strings.Repeat("█", length)))
	}
}

// claim prints whether something held. What did not hold fails the demo, which
// goes on all the same.
func (s *screen) claim(held bool, format string, args ...any) {
	s.claims++
	mark := s.paint(green, "ok    ")
	if !held {
		s.broken++
		mark = s.paint(red, "BROKEN")
	}
	fmt.Fprintf(s.out, "   %s %s\n", mark, fmt.Sprintf(format, args...))
}

// verdict is the error of a demo with broken claims.
func (s *screen) verdict() error {
	if s.broken > 0 {
		return fmt.Errorf("%d of %d claims did not hold", s.broken, s.claims)
	}
	fmt.Fprintf(s.out, "\n%s\n", s.paint(green, fmt.Sprintf("All %d claims held.", s.claims)))
	return nil
}
