package model

import "testing"

func TestParseSpillOver(t *testing.T) {
	for text, want := range map[string]SpillOver{
		"0%": {true, 0}, "20%": {true, 20}, "1000%": {true, 1000},
	} {
		if got, err := ParseSpillOver(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "%", "20", "-1%", "1001%", "2.5%", "on", "20 %"} {
		if got, err := ParseSpillOver(text); err == nil || got.Used {
			t.Errorf("%q: got %v, %v, want an error", text, got, err)
		}
	}
}
