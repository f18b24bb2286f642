//! Classifies a picture in 12 MB: classify LIBRARY PICTURE, where PICTURE holds float32 numbers as the network takes them.
//!
//!     bindgen --allowlist-file '.*/flexcomp.h' PREFIX/include/flexcomp.h -o flexcomp.rs
//!     rustc --edition 2021 -L PREFIX/lib classify.rs -o classify

#[allow(dead_code, non_camel_case_types, non_upper_case_globals)]
mod flexcomp {
    include!("flexcomp.rs");
}

use flexcomp::*;
use std::ffi::{CStr, CString};
use std::mem::{size_of, size_of_val};
use std::{env, fs, process, ptr};

#[link(name = "flexcomp")]
extern "C" {}

/// An open network, closed when it is dropped.
struct Session(*mut flexcomp_session);

fn check(status: flexcomp_status) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    // Valid until this thread's next call, so it is copied.
    Err(unsafe { CStr::from_ptr(flexcomp_message()) }.to_string_lossy().into_owned())
}

impl Session {
    fn open(library: &str, budget: u64) -> Result<Session, String> {
        let path = CString::new(library).map_err(|error| error.to_string())?;
        let mut options: flexcomp_options = unsafe { std::mem::zeroed() };
        options.size = size_of::<flexcomp_options>() as _;
        options.budget = budget;
        let mut session = ptr::null_mut();
        check(unsafe { flexcomp_open(path.as_ptr(), &options, &mut session) })?;
        Ok(Session(session))
    }

    /// The number of bytes of the only output.
    fn output_nbytes(&self) -> Result<usize, String> {
        let mut info: flexcomp_tensor_info = unsafe { std::mem::zeroed() };
        info.size = size_of::<flexcomp_tensor_info>() as _;
        check(unsafe { flexcomp_describe_tensor(self.0, 1, 0, 0, &mut info) })?;
        Ok(info.nbytes as usize)
    }

    fn run(&self, input: &mut [u8], output: &mut [f32]) -> Result<(), String> {
        let tensor = |data, nbytes| {
            let mut made: flexcomp_tensor = unsafe { std::mem::zeroed() };
            made.size = size_of::<flexcomp_tensor>() as _;
            made.data = data;
            made.nbytes = nbytes as u64;
            made
        };
        let given = tensor(input.as_mut_ptr().cast(), input.len());
        let result = tensor(output.as_mut_ptr().cast(), size_of_val(output));
        check(unsafe { flexcomp_run(self.0, &given, 1, &result, 1) })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        unsafe { flexcomp_close(self.0) };
    }
}

fn classify(library: &str, picture: &str) -> Result<String, String> {
    let mut pixels = fs::read(picture).map_err(|error| format!("{picture}: {error}"))?;
    let session = Session::open(library, 12_000_000)?;
    let mut scores = vec![0f32; session.output_nbytes()? / size_of::<f32>()];
    session.run(&mut pixels, &mut scores)?;
    let best = (0..scores.len()).fold(0, |best, at| if scores[at] > scores[best] { at } else { best });
    Ok(format!("class {best}, score {}", scores[best]))
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if arguments.len() != 3 {
        eprintln!("usage: {} LIBRARY PICTURE", arguments[0]);
        process::exit(2);
    }
    match classify(&arguments[1], &arguments[2]) {
        Ok(line) => println!("{line}"),
        Err(message) => {
            eprintln!("error: {message}");
            process::exit(1);
        }
    }
}
