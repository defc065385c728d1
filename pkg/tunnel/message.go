package tunnel

import "encoding/binary"

// A message is a Geneve packet (RFC 8926) with the flag for control, no options, and 16 bytes:
// what is asked for or answered, and a number by which an answer finds its question. 16 more
// bytes show that its sender knows the cluster's secret. Version 1 has none of these, and an
// answer to it neither: an answer is as long as the question, so it amplifies no traffic.
const (
	headerSize  = 8
	messageSize = headerSize + 16
	signedSize  = messageSize + len(code{})

	flagControl = 1 << 7 // in the header's second byte
	etherType   = 0x88b5 // what follows the header; for experiments (IEEE 802)
	version     = 2      // of the message, and of what is in the tunnel
)

// The kinds of message.
const (
	kindQuestion = 1
	kindAnswer   = 2
)

// flagAccepts says that the node accepts tunnel traffic.
const flagAccepts = 1 << 0

// code shows that the sender of a message knows a secret.
type code [16]byte

// message is a question or an answer between agents.
type message struct {
	version, kind, flags uint8
	nonce                uint64
	signed               bool
	code                 code // zero unless signed
}

// head is the input of a code.
func (m message) head() []byte {
	b := make([]byte, messageSize-headerSize)
	b[0], b[1], b[2] = m.version, m.kind, m.flags
	binary.BigEndian.PutUint64(b[8:], m.nonce)
	return b
}

func (m message) marshal() []byte {
	b := make([]byte, headerSize, signedSize)
	b[1] = flagControl
	binary.BigEndian.PutUint16(b[2:], etherType)
	b = append(b, m.head()...)
	if m.signed {
		b = append(b, m.code[:]...)
	}
	return b
}

// parse reads a message; later versions may add to its end.
func parse(b []byte) (message, bool) {
	if len(b) < messageSize || b[0] != 0 || b[1]&flagControl == 0 || binary.BigEndian.Uint16(b[2:]) != etherType {
		return message{}, false
	}
	m := message{
		version: b[headerSize], kind: b[headerSize+1], flags: b[headerSize+2],
		nonce: binary.BigEndian.Uint64(b[headerSize+8:]),
	}
	if len(b) >= signedSize {
		m.signed, m.code = true, code(b[messageSize:signedSize])
	}
	return m, true
}
