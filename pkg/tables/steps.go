package tables

import (
	"math/bits"
	"sort"
)

// A Service that gets less than it asks for gets a step, a number of three significant bits, and at
// most seven eighths of what it asks for. So one that gets another share gives up, or gets, an eighth of
// it at least: what one Service more takes, or a part that changes, comes from few.

// stepBits is how many significant bits a step has.
const stepBits = 3

// lastStep is the number of a step that is more than a Service asks for.
const lastStep = (32 - stepBits + 2) << (stepBits - 1)

// step returns a step by its number: 0 to 8, 10, 12, 14, 16, 20 and so on.
func step(number int) uint64 {
	const half = 1 << (stepBits - 1)
	if number < half {
		return uint64(number)
	}
	return uint64(half+number%half) << (number/half - 1)
}

// stepDown returns the greatest step that is not above n.
func stepDown(n uint64) uint64 {
	low := max(bits.Len64(n)-stepBits, 0)
	return n >> low << low
}

// within returns what one that asks for so much gets where others get a step.
func within(asked, step uint64) uint64 {
	if asked <= step {
		return asked
	}
	return stepDown(min(step, asked-(asked+7)/8))
}

// shareSteps shares out room: all get the greatest step that there is room for, unless they ask for less,
// and as many of the first ones as there is room for the next step.
func shareSteps(asked []uint64, room uint64) []uint64 {
	sum := func(step uint64) (sum uint64) {
		for _, a := range asked {
			sum += within(a, step)
		}
		return sum
	}
	number := sort.Search(lastStep, func(n int) bool { return sum(step(n+1)) > room })
	given := make([]uint64, len(asked))
	for i, a := range asked {
		given[i] = within(a, step(number))
		room -= given[i]
	}
	for i, a := range asked {
		more := within(a, step(number+1)) - given[i]
		if more > room {
			break
		}
		given[i] += more
		room -= more
	}
	return given
}
