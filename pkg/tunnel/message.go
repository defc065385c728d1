package tunnel

import "encoding/binary"

// A message is a Geneve packet (RFC 8926) with the flag for control, no options, and 16
// bytes: what is asked for or answered, and a number by which an answer finds its
// question. An answer is as long as the question: nobody gets more than they sent.
const (
	headerSize  = 8
	messageSize = headerSize + 16

	flagControl = 1 << 7 // in the header's second byte
	etherType   = 0x88b5 // what follows the header; for experiments (IEEE 802)
	version     = 1      // of the message, and of what is in the tunnel
)

// The kinds of message.
const (
	kindQuestion = 1
	kindAnswer   = 2
)

// flagTakes says that the node takes packets of the tunnel.
const flagTakes = 1 << 0

// message is what agents tell each other.
type message struct {
	version, kind, flags uint8
	nonce                uint64
}

func (m message) marshal() []byte {
	b := make([]byte, messageSize)
	b[1] = flagControl
	binary.BigEndian.PutUint16(b[2:], etherType)
	b[headerSize], b[headerSize+1], b[headerSize+2] = m.version, m.kind, m.flags
	binary.BigEndian.PutUint64(b[headerSize+8:], m.nonce)
	return b
}

// parse reads a message; later versions may add to its end.
func parse(b []byte) (message, bool) {
	if len(b) < messageSize || b[0] != 0 || b[1]&flagControl == 0 || binary.BigEndian.Uint16(b[2:]) != etherType {
		return message{}, false
	}
	return message{
		version: b[headerSize], kind: b[headerSize+1], flags: b[headerSize+2],
		nonce: binary.BigEndian.Uint64(b[headerSize+8:]),
	}, true
}
