// Classify pictures with an exported model in C++: OpenVINO runs the model, OpenCV reads and resizes pictures.
//
//   classify FOLDER picture.jpg ...      FOLDER: a version, such as workspace/exports/v000017
//
// It checks itself against the golden sample first, and ends with 1 if it does not answer as the trainer did.
// README.md beside this file says how to build it.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <opencv2/core.hpp>
#include <opencv2/imgcodecs.hpp>
#include <opencv2/imgproc.hpp>
#include <openvino/openvino.hpp>

struct Answer {
  std::vector<float> scores;
  float similarity;
};

static cv::Mat read_picture(const std::string& path) {
  cv::Mat picture = cv::imread(path, cv::IMREAD_COLOR);
  if (picture.empty()) throw std::runtime_error(path + ": no picture that can be read");
  cv::cvtColor(picture, picture, cv::COLOR_BGR2RGB);  // OpenCV reads BGR
  return picture;
}

static std::string read_text(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The middle with the aspect ratio of the model's input, shrunk by area or grown linearly.
static cv::Mat resized(const cv::Mat& picture, int height, int width) {
  // std::nearbyint rounds halves to even.
  const int rows = std::min(picture.rows, std::max(1, int(std::nearbyint(double(picture.cols) * height / width))));
  const int columns = std::min(picture.cols, std::max(1, int(std::nearbyint(double(picture.rows) * width / height))));
  const cv::Rect middle((picture.cols - columns) / 2, (picture.rows - rows) / 2, columns, rows);
  const bool shrinks = rows >= height && columns >= width;
  cv::Mat result;
  cv::resize(picture(middle), result, {width, height}, 0, 0, shrinks ? cv::INTER_AREA : cv::INTER_LINEAR);
  return result.isContinuous() ? result : result.clone();
}

class Model {
 public:
  explicit Model(const std::string& folder) : folder_(folder), manifest_(read_text(folder + "/manifest.json")) {
    ov::Core core;
    // In 32 bits, as the trainer: some processors would use 16.
    compiled_ = core.compile_model(folder + "/model.onnx", "CPU", ov::hint::inference_precision(ov::element::f32));
    const auto shape = compiled_.input("image").get_partial_shape();
    height_ = int(shape[1].get_length());
    width_ = int(shape[2].get_length());
    std::ifstream file(folder + "/labels.txt");
    for (std::string name; std::getline(file, name);) names_.push_back(name);
  }

  Answer answer(const cv::Mat& picture) {
    cv::Mat image = resized(picture, height_, width_);
    auto request = compiled_.create_infer_request();
    const ov::Shape shape{1, size_t(height_), size_t(width_), 3};
    request.set_tensor("image", ov::Tensor(ov::element::u8, shape, image.data));
    request.infer();
    const auto scores = request.get_tensor("scores");
    const float* first = scores.data<float>();
    return {{first, first + scores.get_size()}, request.get_tensor("similarity").data<float>()[0]};
  }

  std::string said(const Answer& answer) const {
    // A manifest without a threshold says null, and nothing is unknown.
    std::smatch found;
    const std::regex threshold("\"unknown_below\": (-?[0-9.e+-]+)");
    if (std::regex_search(manifest_, found, threshold) && answer.similarity < std::stof(found[1])) return "unknown";
    const auto best = std::max_element(answer.scores.begin(), answer.scores.end()) - answer.scores.begin();
    return names_.at(best) + " " + std::to_string(answer.scores[best]);
  }

  // Whether the golden sample is answered as by the trainer.
  bool check() {
    const cv::FileStorage golden(folder_ + "/golden.json", cv::FileStorage::READ | cv::FileStorage::FORMAT_JSON);
    bool good = true;
    for (const std::string what : {"input", "image"}) {
      const Answer found = answer(read_picture(folder_ + "/" + std::string(golden[what])));
      float difference = std::abs(found.similarity - float(golden["similarity"]));
      if (golden["scores"].size() != found.scores.size()) return false;
      for (size_t place = 0; place < found.scores.size(); place++) {
        difference = std::max(difference, std::abs(found.scores[place] - float(golden["scores"][int(place)])));
      }
      std::cout << "golden " << what << ": within " << difference << std::endl;
      good = good && difference <= float(golden["tolerance"][what]);
    }
    return good;
  }

 private:
  std::string folder_, manifest_;
  ov::CompiledModel compiled_;
  int height_ = 0, width_ = 0;
  std::vector<std::string> names_;
};

int main(int count, char** words) {
  if (count < 2) {
    std::cerr << "usage: classify FOLDER [PICTURE ...]" << std::endl;
    return 2;
  }
  try {
    Model model(words[1]);
    if (!model.check()) {
      std::cerr << "the golden sample is answered otherwise than by the trainer" << std::endl;
      return 1;
    }
    for (int place = 2; place < count; place++) {
      std::cout << words[place] << ": " << model.said(model.answer(read_picture(words[place]))) << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
