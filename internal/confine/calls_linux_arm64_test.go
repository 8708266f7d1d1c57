package confine_test

// callsOfTheProcessor are attempts that only this processor has.
var callsOfTheProcessor []attempt
