package demand

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/beeline-lb/beeline/pkg/model"
)

// A message is 16 bytes and 12 for each Service: a question names Services by a hash, an answer those of
// them that the node knows, with the active connections of its clients. It is no longer than the question,
// so it amplifies no traffic. One of all Services that there may be is below the least MTU of IPv6.
const (
	magic      = 0xbee11e5d
	version    = 1
	headerSize = 16
	entrySize  = 12
	// valueScale is how many units an active connection is, for they are means.
	valueScale = 256
)

// The kinds of message.
const (
	kindQuestion = 1
	kindAnswer   = 2
)

// key is the hash that stands for a Service: of a kind that a tenant cannot make a Service for.
type key uint64

func keyOf(service model.Name) key {
	sum := sha256.Sum256([]byte(service.String()))
	return key(binary.BigEndian.Uint64(sum[:]))
}

// entry is a Service in a message, in an answer with the mean of its active connections.
type entry struct {
	key   key
	value uint32 // in units of 1/valueScale; 0 in a question
}

// message is a question or an answer.
type message struct {
	kind    uint8
	nonce   uint64
	entries []entry
}

func (m *message) marshal() []byte {
	b := make([]byte, headerSize, headerSize+entrySize*len(m.entries))
	binary.BigEndian.PutUint32(b, magic)
	b[4], b[5] = version, m.kind
	binary.BigEndian.PutUint16(b[6:], uint16(len(m.entries)))
	binary.BigEndian.PutUint64(b[8:], m.nonce)
	for _, e := range m.entries {
		b = binary.BigEndian.AppendUint64(b, uint64(e.key))
		b = binary.BigEndian.AppendUint32(b, e.value)
	}
	return b
}

// parse reads a message; later versions may add to its end.
func parse(b []byte) (message, bool) {
	if len(b) < headerSize || binary.BigEndian.Uint32(b) != magic || b[4] == 0 {
		return message{}, false
	}
	m := message{kind: b[5], nonce: binary.BigEndian.Uint64(b[8:])}
	n := int(binary.BigEndian.Uint16(b[6:]))
	if n > model.MaxSpillOvers || len(b) < headerSize+n*entrySize {
		return message{}, false
	}
	for i := range n {
		at := b[headerSize+i*entrySize:]
		m.entries = append(m.entries, entry{key(binary.BigEndian.Uint64(at)), binary.BigEndian.Uint32(at[8:])})
	}
	return m, true
}
