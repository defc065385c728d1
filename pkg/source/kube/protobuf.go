package kube

import "google.golang.org/protobuf/encoding/protowire"

// field is a field of a protobuf message.
type field struct {
	number protowire.Number
	bytes  []byte // of a string or message, part of the message's own memory
	varint uint64 // of a number
}

// eachField calls f with the fields of a message in their order, until it fails.
func eachField(message []byte, f func(field) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		next := field{number: number}
		switch kind {
		case protowire.BytesType:
			next.bytes, n = protowire.ConsumeBytes(message)
		case protowire.VarintType:
			next.varint, n = protowire.ConsumeVarint(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if err := f(next); err != nil {
			return err
		}
	}
	return nil
}

// countFields returns how many fields of that number a message has.
func countFields(message []byte, number protowire.Number) (count int, err error) {
	err = eachField(message, func(f field) error {
		if f.number == number {
			count++
		}
		return nil
	})
	return count, err
}
