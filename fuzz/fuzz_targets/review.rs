#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| belay_fuzz::review(data));
