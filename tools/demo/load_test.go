package main

import (
	"maps"
	"testing"
	"time"
)

func TestRequestLines(t *testing.T) {
	for _, want := range []request{
		{start: time.Unix(12, 345), server: "web-1"},
		{start: time.Unix(12, 345), err: "dial tcp: connection refused"},
		{start: time.Unix(12, 345), err: "with\ta tab"},
	} {
		got, err := parseRequest(want.String())
		if err != nil || got != want {
			t.Errorf("%q is read as %+v, %v", want, got, err)
		}
	}
	for _, line := range []string{"", "1\tweb-1", "soon\tweb-1\t"} {
		if got, err := parseRequest(line); err == nil {
			t.Errorf("%q is read as %+v", line, got)
		}
	}
}

func TestCount(t *testing.T) {
	at := func(seconds int64) time.Time { return time.Unix(seconds, 0) }
	requests := []request{
		{at(1), "web-1", ""},
		{at(2), "web-1", ""},
		{at(3), "", "refused"},
		{at(3), "web-2", ""},
		{at(4), "", "timeout"},
		{at(5), "web-1", ""},
	}
	got := count(requests, at(2), at(5))
	if got.total != 4 || got.failed != 2 || got.failure != "refused" {
		t.Errorf("%d requests, %d failed: %q; want 4, 2: refused", got.total, got.failed, got.failure)
	}
	if want := map[string]int{"web-1": 1, "web-2": 1}; !maps.Equal(got.servers, want) {
		t.Errorf("answered by %v, want %v", got.servers, want)
	}
	if last := lastTo("web-2", requests); !last.Equal(at(3)) {
		t.Errorf("the last request to web-2 was at %v, want 3 s", last.Unix())
	}
}
