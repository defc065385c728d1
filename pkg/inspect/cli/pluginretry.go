package cli

import "time"

// Each loss of a node is followed by a longer pause, up to the longest, and what is lost so often, each time
// within longFollow, is given up: a monitor that a node's memory limit ends is started again in vain.
const (
	firstLook      = time.Second
	mostUntilALook = 10 * time.Second
	longFollow     = 2 * time.Minute
	mostLosses     = 5
)

// retries says when to look for a node that was lost.
type retries struct {
	wait   time.Duration // before the last look
	losses int           // in a row, each within longFollow
}

// lost notes that a node was lost which had been followed so long, and reports whether to look for it again.
func (r *retries) lost(followed time.Duration) bool {
	if followed >= longFollow {
		*r = retries{}
		return true
	}
	r.losses++
	return r.losses < mostLosses
}

// next returns how long to wait before the next look.
func (r *retries) next() time.Duration {
	r.wait = min(max(2*r.wait, firstLook), mostUntilALook)
	return r.wait
}
