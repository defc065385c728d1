package libxdp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// FuzzConfig: settings that are taken hold as many programs as there are slots, and are
// the bytes that were read; all others are rejected as somebody else's.
func FuzzConfig(f *testing.F) {
	two := dispatcherConfig{Magic: magic, Version: 2, Count: 2, Priority: [10]uint32{10, 50}}
	seed, err := binary.Append(nil, binary.NativeEndian, two)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add(append(append([]byte{magic, 3}, seed[2:]...), 0, 0, 0, 0))
	f.Add(append(append([]byte{magic, 3}, seed[2:]...), 1, 0, 0, 0))
	f.Add(append([]byte{magic, 2, 11}, seed[3:]...))
	f.Add([]byte{magic})
	f.Add(make([]byte, 84))
	f.Fuzz(func(t *testing.T, value []byte) {
		config, err := parseConfig(value)
		if err != nil {
			if !errors.As(err, &ForeignError{}) {
				t.Fatalf("the error is no ForeignError: %v", err)
			}
			return
		}
		if int(config.Count) > len(config.Next) {
			t.Fatalf("%d programs in %d slots", config.Count, len(config.Next))
		}
		again, err := binary.Append(nil, binary.NativeEndian, config)
		if err != nil || !bytes.Equal(again, value[:len(again)]) {
			t.Fatalf("% x becomes % x, %v", value, again, err)
		}
		if len(value) > len(again) && value[len(again)] != 0 {
			t.Fatalf("% x is taken, of a dispatcher that is bound to the device", value)
		}
	})
}
