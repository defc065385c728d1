package pause

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if !For(t.Context(), time.Hour) || time.Since(start) != time.Hour {
			t.Errorf("a pause of an hour took %v", time.Since(start))
		}
		if !For(t.Context(), -time.Hour) || time.Since(start) != time.Hour {
			t.Errorf("a pause of less than nothing took %v", time.Since(start)-time.Hour)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if For(ctx, time.Hour) || time.Since(start) != time.Hour+time.Minute {
			t.Errorf("the context ended after a minute, the pause after %v", time.Since(start)-time.Hour)
		}
		if For(ctx, 0) {
			t.Error("the context goes on after its end")
		}
	})
}
