package model

import "strconv"

// quotable is how many bytes of a text errors repeat.
const quotable = 64

// Quote returns a text in double quotes, for an error about it. Of a long one, which
// anybody who may edit a Service can write into the log and the events of every node, it
// is the beginning.
func Quote(text string) string {
	if len(text) <= quotable {
		return strconv.Quote(text)
	}
	return strconv.Quote(text[:quotable]) + "..."
}
