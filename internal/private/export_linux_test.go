package private

// ChangeMode is for tests.
var ChangeMode = changeMode
