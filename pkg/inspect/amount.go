package inspect

import "fmt"

// Amount returns "1 thing" or "2 things".
func Amount[T ~int | ~uint32 | ~uint64](n T, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
