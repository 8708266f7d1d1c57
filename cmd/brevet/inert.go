package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
)

// maxMarks is how many combining marks may sit on one letter: enough for any language, too few to bury the lines
// around it.
const maxMarks = 4

// visible says whether a character shows as what it is: not a control, not invisible, not one that reorders text or
// picks a variant of the one before.
func visible(r rune) bool {
	const blankBraille = 0x2800
	return unicode.IsPrint(r) && r != blankBraille &&
		!unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// inert makes text from elsewhere safe to print: whatever could move the cursor, hide or reorder text shows as an
// escape instead.
func inert(s string) string {
	return escape(s, func(r rune) string { return fmt.Sprintf("\\u%04x", r) })
}

func escape(s string, written func(rune) string) string {
	var out strings.Builder
	marks := 0
	for _, r := range s {
		if unicode.Is(unicode.M, r) {
			marks++
		} else {
			marks = 0
		}
		if visible(r) && marks <= maxMarks {
			out.WriteRune(r)
			continue
		}
		out.WriteString(written(r))
	}
	return out.String()
}

// encode prints one JSON document on a line of its own. It is for programs, but people look at it too: what is not
// visible is written as JSON escapes, which mean the same.
func (c *console) encode(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.out, escape(string(data), func(r rune) string {
		if first, second := utf16.EncodeRune(r); first != unicode.ReplacementChar {
			return fmt.Sprintf("\\u%04x\\u%04x", first, second)
		}
		return fmt.Sprintf("\\u%04x", r)
	}))
	return err
}
