package main

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
)

// object reads text as one JSON object with nothing before or after it.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	all := objects(t, text)
	if len(all) != 1 {
		t.Fatalf("got %d JSON documents, want one: %s", len(all), text)
	}
	return all[0]
}

// objects reads text as JSON objects with nothing between them.
func objects(t *testing.T, text string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for decoder := json.NewDecoder(strings.NewReader(text)); ; {
		var next map[string]any
		err := decoder.Decode(&next)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("not JSON: %v\n%s", err, text)
		}
		all = append(all, next)
	}
}
