package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestVerdict(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out}
	s.claim(true, "water is wet")
	if err := s.verdict(); err != nil {
		t.Errorf("all claims held, but: %v", err)
	}
	s.claim(false, "%d is odd", 2)
	s.claim(true, "snow is white")
	if err := s.verdict(); err == nil || err.Error() != "1 of 3 claims did not hold" {
		t.Errorf("error %v, want 1 of 3 claims", err)
	}
	if !strings.Contains(out.String(), "BROKEN 2 is odd\n") {
		t.Errorf("the broken claim is not marked:\n%s", &out)
	}
}

func TestBars(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out}
	s.bars([]string{"a", "b", "c"}, map[string]int{"a": 30, "b": 10})
	var lengths []int
	for line := range strings.Lines(out.String()) {
		lengths = append(lengths, strings.Count(line, "█"))
	}
	if len(lengths) != 3 || lengths[0] != 3*lengths[1] || lengths[1] == 0 || lengths[2] != 0 {
		t.Errorf("bars of 30, 10 and 0 have lengths %v", lengths)
	}
}

func TestColoursOnlyWhenAsked(t *testing.T) {
	if got := (&screen{}).paint(red, "text"); got != "text" {
		t.Errorf("without colours: %q", got)
	}
	if got := (&screen{colours: true}).paint(red, "text"); got != "\x1b[31mtext\x1b[0m" {
		t.Errorf("with colours: %q", got)
	}
}

func TestEachHasOne(t *testing.T) {
	for _, c := range []struct {
		lists map[string][]string
		want  bool
	}{
		{map[string][]string{"x": {"a"}, "y": {"b", "b", "b"}}, true},
		{map[string][]string{"x": {"a"}, "y": {"b", "a"}}, false},
		{map[string][]string{"x": {"a", "b", "a"}}, false},
	} {
		if got := eachHasOne(c.lists); got != c.want {
			t.Errorf("%v: %t", c.lists, got)
		}
	}
}
