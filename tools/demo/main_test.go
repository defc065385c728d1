package main

import (
	"os"
	"testing"

	"github.com/beeline-lb/beeline/tests/mounts"
)

func TestMain(m *testing.M) { os.Exit(mounts.Main(m)) }
