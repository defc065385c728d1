package model_test

import (
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
)

// TestStartShare: the share of an endpoint can be told by its weight.
func TestStartShare(t *testing.T) {
	for _, full := range []uint16{0, 1, 2, 7, 255, 6553, 6554, 65025, 65535} {
		scale := model.StartScale(full)
		last := uint16(0)
		for share := uint16(1); share <= model.FullShare; share++ {
			weight := model.StartWeight(full, share, scale)
			if full == 0 {
				if weight != 0 {
					t.Errorf("weight %d of none", weight)
				}
				continue
			}
			if weight <= last {
				t.Errorf("full weight %d: weight %d after %d", full, weight, last)
			}
			if got := model.StartShare(full, weight, scale); got != share {
				t.Errorf("full weight %d: %d is share %d, want %d", full, weight, got, share)
			}
			last = weight
		}
	}
}

func TestParseSlowStart(t *testing.T) {
	for text, want := range map[string]time.Duration{"10s": 10 * time.Second, "1m30s": 90 * time.Second, "1h": time.Hour} {
		if got, err := model.ParseSlowStart(text); err != nil || got != want {
			t.Errorf("%q: %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "10", "9.9s", "1h1s", "-20s", "forever"} {
		if got, err := model.ParseSlowStart(text); err == nil {
			t.Errorf("%q: %s, want an error", text, got)
		}
	}
}
