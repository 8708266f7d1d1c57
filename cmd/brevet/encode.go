package main

import (
	"encoding/json"
	"fmt"

	"github.com/brevet-dev/brevet/internal/safetext"
)

// encode prints one JSON document on one line. People may read it as well as programs, so invisible characters are written
// as JSON escapes, which mean the same.
func (c *console) encode(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.out, safetext.JSON(string(data)))
	return err
}

// encodeAll prints each item as one JSON document on one line.
func encodeAll[T any](c *console, items []T) error {
	for _, item := range items {
		if err := c.encode(item); err != nil {
			return err
		}
	}
	return nil
}
