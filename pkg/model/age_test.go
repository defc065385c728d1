package model

import (
	"slices"
	"testing"
	"time"
)

func TestAge(t *testing.T) {
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	want := []Age{
		{early, Name{"a", "b"}}, {early, Name{"b", "a"}}, {late, Name{"a", "a"}},
		{time.Time{}, Name{"a", "a"}}, {time.Time{}, Name{"a", "b"}},
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	if slices.SortFunc(got, Age.Compare); !slices.Equal(got, want) {
		t.Errorf("the order is %v, want %v", got, want)
	}
}
