package devicemap

import (
	"bytes"
	"encoding/binary"
	"maps"
	"testing"

	"github.com/beeline-lb/beeline/tests/maptest"
)

func TestTagsAreInTheOrderOfTheWire(t *testing.T) {
	entry := Tags{{Protocol: 0x88a8, ID: 0xabc}}.entry()
	raw, err := binary.Append(nil, binary.NativeEndian, []uint16{entry[0].Protocol, entry[0].Id})
	if err != nil || !bytes.Equal(raw, []byte{0x88, 0xa8, 0x0a, 0xbc}) {
		t.Errorf("a tag lies in memory as % x: %v", raw, err)
	}
}

func TestFramesAreReplaced(t *testing.T) {
	m := New(maptest.New(t, maptest.Small))
	five, inner := Tags{{Protocol: 0x8100, ID: 5}}, Tags{{Protocol: 0x88a8, ID: 100}, {Protocol: 0x8100, ID: 7}}
	for _, want := range []map[Frames]uint32{
		{{Ifindex: 2, Tags: five}: 1, {Ifindex: 2, Tags: inner}: 2},
		{{Ifindex: 2, Tags: five}: 3, {Ifindex: 4}: 4},
		{},
	} {
		if err := m.SetFrames(want); err != nil {
			t.Fatal(err)
		}
		got, err := m.Frames()
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("frames are %v, want %v: %v", got, want, err)
		}
	}
}
