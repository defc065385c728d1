package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/beeline-lb/beeline/tests/mounts"
)

// built is the folder that [binaries] makes.
var built string

func TestMain(m *testing.M) {
	code := mounts.Main(m)
	if err := os.RemoveAll(built); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
