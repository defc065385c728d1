package main

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
)

type discard struct{}

func (discard) Apply(source.Update) {}
func (discard) Synced()             {}

// TestNodeTellsThePodRanges: what a source says of the Node reaches who asked for it.
func TestNodeTellsThePodRanges(t *testing.T) {
	var got []netip.Prefix
	sink := &nodeSink{
		Sink:         discard{},
		setNode:      func(*model.LocalNode) {},
		setPodRanges: func(r []netip.Prefix) { got = r },
	}
	want := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	sink.Apply(source.Update{LocalNode: &model.LocalNode{Name: "n", PodRanges: want}})
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	sink.Apply(source.Update{})
	if !slices.Equal(got, want) {
		t.Errorf("an update without a node made it %v", got)
	}
}
